"""The words of `stopwords`, one table per language: which phrases say stop, and which may stand around them.

1. A phrase is written as people write it. `{a|b}` stands for both spellings, `{a|}` for with and without `a`. Commas
   and line ends separate phrases.
2. A word that can also mean something else as a whole message ("alto", "enough", "wait") is not in `stops`. "wait" may
   still stand around a stop (`around`).
3. A language's word for "not" stands under `negations` only if it also means "no". A "not" with no such meaning (German
   "nicht") stands in no table alone, only inside longer phrases. So no phrases cover the German message "nicht
   anhalten" (do not stop), and it is an ordinary message.
"""

from itertools import product
from typing import Final, NamedTuple


class Language(NamedTuple):
    """The phrases of one language. A clause with a stop and a denial, or a stop and a negation, is no stop."""

    stops: str
    # Objects stand only after a stop, in its clause: stop *doing that*.
    objects: str = ""
    # Politeness, urgency, emphasis and address stand anywhere, and are no stop by themselves.
    around: str = ""
    # A denial at the end of its clause is a stop ("don't!"); in one clause with a stop it makes the opposite.
    denials: str = ""
    # A negation is no stop by itself ("no"); in one clause with a stop it makes the opposite.
    negations: str = ""
    # Whole clauses that would be read as stops, and mean something else.
    never: str = ""
    spaced: bool = True  # False: the language is written without spaces, and each character is a word


def phrases(text: str) -> list[str]:
    """Return the phrases of a table's text, each in all its spellings."""
    spelled = []
    for phrase in filter(None, map(str.strip, text.replace("\n", ",").split(","))):
        parts = [part.split("|") for part in phrase.replace("}", "{").split("{")]
        spelled += [" ".join("".join(chosen).split()) for chosen in product(*parts)]
    return spelled


EVERYWHERE: Final = Language(
    stops="/stop, stop, stopp, 🛑",
    around="ok, okay, hey, please, pls, plz, sos",
)

ENGLISH: Final = Language(
    stops="""
        esc, abort, exit, interrupt, halt, cancel, quit, cease, desist, s t o p, stahp, sotp, stpo, tsop, stpp
        stopit, {yes|yeah} {please |}stop, make it stop, all stop, cut {it|that} out, knock {it|that} off
        stand down, that's enough
        enough {already|of that|of this}
        {don't|dont|do not} {do|try} {it|that|this|so|anything|nothing|any of that|any of this|any of it}
        {don't|dont|do not} do {it|that|this|anything} {any more|anymore}, {don't|dont|do not} do anything {else|more}
        {don't|dont|do not} {continue|proceed|go on|keep going|carry on|go ahead|go any further|go further}
        {don't|dont|do not} {continue|proceed with} {it|that|this|anything}
    """,
    objects="""
        it, that, this, {it|that|this} all, all, all {of |}{it|that|this}, everything, anything, everything else
        {the|your|this|current|the current|all|} {run|runs|action|actions|agent|agents|bot}, work, working, running
        doing {it|that|this|anything|everything|so}, doing, trying, talking, typing, generating, answering, responding
        {doing |}{what|whatever|everything} {you are|you're|youre|ur} doing, yourself
    """,
    around="""
        please please, pleasee, pleaseee, plss, plzz, kindly, thanks, thank {you|u}, thx, ty, sorry
        now, right {now|away|there}, there, here, immediately, instantly, at once, asap, already, quick, quickly, fast
        this {instant|minute|second|moment}, hurry, urgent, urgently, emergency, for now, for good
        no, noo, nono, nope, oh no, no more, wait, hold on, never mind, nevermind, nvm, ok then, and, just
        everything, all of {it|this|that}
        really, seriously, i mean it, i beg {you|u}, i am begging you, i'm begging you, im begging you, do nothing
        {for |}{god's|gods|christ's|heaven's|pete's|fuck's} sake, for the love of god, {oh |}{my |}god, omg, wtf, ffs
        damn, damn it, damnit, dammit, goddammit, jesus, jesus christ, fuck, fucking, the fuck, the hell, shit, bloody
        {can|could|would|will} {you|u}, you {must|should|can|may|need to|have to}, {i want|i need|i told} you to
        let's
        i {said|say}, i said to, lets, agent, bot, robot, assistant, ai, dude, bro, man, buddy, mate, you, hello, hi
        leave {it|that|everything} {alone|}
        {don't|dont|do not} {delete|remove|erase|touch|change|modify|edit|send|run|execute|write|move|post|buy|pay} \
{it|that|this|them|those|anything|everything|any of it|any of them|anything else}
        {don't|dont|do not} {open|close|start|install|commit|deploy|overwrite|drop|click|call|use|break} \
{it|that|this|them|those|anything|everything|anything else}
    """,
    denials="{stop |}{please |}{don't|dont|do not} {please|pls|plz|}, {don't|dont} you dare",
    never="no exit, non stop, this exit, that exit, no quit, you {don't|dont|do not}",
)

SPANISH: Final = Language(
    stops="""
        para, pare, paren, parad, párate, párense, detente, detén, deténgase, deténganse, deteneos, basta, alto ahí
        cancela, cancele, cancelar, aborta, aborte, abortar, interrumpe, interrumpa, déjalo, deja eso
        {deja|para} de hacer {eso|esto|lo que haces}, {deja|para} de hacerlo
        no {hagas|haga|hagan} {eso|esto|nada|nada más}, no lo {hagas|haga|hagan}, no sigas, no continúes
    """,
    objects="todo, eso, esto, todo eso, todo esto, lo que {haces|estás haciendo}, con {eso|esto|todo}, ahí, el agente",
    around="""
        por favor, porfavor, porfa, porfis, ya, ahora, ahora mismo, ya mismo, inmediatamente, de inmediato, de una vez
        urgente, rápido, oye, gracias, te lo {ruego|pido|suplico}, por dios, dios mío, en serio, espera, no no
        no no no
        he dicho que, agente, bot, no {borres|toques|envíes|mandes|cambies|elimines} {nada|eso}
    """,
    negations="no",
    never="para {todo|eso|esto|ahora|ahí|todo eso|todo esto|el agente}, basta {con |}{eso|esto}",
)

FRENCH: Final = Language(
    stops="""
        arrête, arrêtes, arrêtez, arrêter, {arrête|arrêtez}-{toi|vous}, arrête toi, arrêtez vous, stoppe, stoppez
        stopper, halte, cesse, cessez, annule, annulez, annuler, ça suffit, interromps, interrompez, laisse tomber
        {ne |}{fais|faites} pas {ça|cela}, {ne |}{fais|faites} {rien|plus rien}, {ne |}{continue|continuez} pas
    """,
    objects="""
        ça, cela, ceci, tout, tout {ça|cela}, ce que {tu fais|vous faites}, de faire {ça|cela}, l'agent, là
    """,
    around="""
        s'il {te|vous} plaît, sil {te|vous} plaît, stp, svp, maintenant, immédiatement, tout de suite, de suite, là
        non, vite, merci, bon, bon sang, je t'en {prie|supplie}, je vous en {prie|supplie}, pitié, mon dieu
        urgent, attends, attendez, hé, putain, merde, j'ai dit, agent, bot
        ne {touche|touchez} à rien, {ne |}{supprime|supprimez|envoie|envoyez} {rien|pas ça}
    """,
    never="non stop",
)

GERMAN: Final = Language(
    stops="""
        anhalten, stoppen, stoppe, halt, aufhören, aufhoeren, abbrechen, abbruch, brich ab, brich das ab, schluss
        schluss {damit|jetzt}, es reicht, jetzt reicht's, jetzt reichts
        {hör|hoer|hört|hoert} {jetzt|sofort|bitte|endlich|mal|damit|doch|jetzt sofort|bitte sofort|} auf
        hören sie {bitte|sofort|damit|} auf, {lass|lasst} {das|es} {sein|bleiben|}, unterbrechen
        {mach|macht|tu|tut} {das|es} {bitte |}nicht, nicht {machen|tun}, das nicht {machen|tun}
        {mach|macht|tu|tut} {gar |}nichts {mehr|}, nichts {mehr |}{machen|tun}, nicht weitermachen, mach nicht weiter
    """,
    objects="das, dies, es, alles, alles davon, damit, mit allem, den agenten",
    around="""
        bitte, jetzt, sofort, jetzt sofort, gleich, schnell, endlich, mal, doch, nein, nee, danke, dringend, hallo
        um gottes willen, um himmels willen, verdammt, verdammt nochmal, scheiße, warte, ich {sagte|sage}, agent, bot
        auf der stelle, unverzüglich, lösch nichts, nichts löschen, nichts {anfassen|senden|ändern}
    """,
    never="halt {mal|doch|das|es|alles}, {mal|doch} halt",
)

PORTUGUESE: Final = Language(
    stops="""
        pare, para, parem, parar, chega, basta, cancele, cancela, cancelar, aborte, aborta, abortar, interrompa
        interrompe, {pare|para} com {isso|isto|tudo}, {pare|para} de fazer {isso|isto}, deixa disso
        não {faça|faz|faças|façam} {isso|isto|nada|mais nada}, não continue
    """,
    objects="tudo, isso, isto, tudo isso, com {isso|isto|tudo}, aí, o que {está|estás} {fazendo|a fazer}, o agente",
    around="""
        por favor, pf, pfv, porfavor, agora, agora mesmo, já, imediatamente, de uma vez, urgente, rápido, ei, obrigado
        obrigada, pelo amor de deus, meu deus, espera, espere, eu disse, agente, bot, não não, não não não
        não {apague|apaga|mexa|mexe|toque|envie} {nada|em nada|isso}
    """,
    negations="não",
    never="para {isso|isto|agora|já|aí|tudo isso|o agente}, chega {aí|já|agora}, basta {isso|isto|tudo}",
)

ITALIAN: Final = Language(
    stops="""
        fermati, fermatevi, fermo, ferma, si fermi, basta, basta così, smettila, smettetela, smetti, la smetta
        interrompi, annulla, annullare, non farlo, non {fare|fate} {niente|nulla|questo|quello|così|altro}
    """,
    objects="tutto, tutto quanto, questo, quello, ciò, con questo, con tutto, di farlo, lì, l'agente",
    around="""
        per {favore|piacere|carità}, ti {prego|scongiuro|supplico}, subito, adesso, ora, immediatamente, ehi, dai
        presto, veloce, grazie, urgente, aspetta, dio mio, ho detto, agente, bot
        non {toccare|cancellare} {niente|nulla}
    """,
    negations="no",
    never="basta {questo|quello|tutto|così poco}",
)

DUTCH: Final = Language(
    stops="""
        stoppen, {hou|houd} {nu|nou|daarmee|hiermee|ermee|eens|meteen|onmiddellijk|alsjeblieft|} op, ophouden, halt
        kap {ermee|nou|daarmee}, kappen, kappen nou, annuleer, annuleren, afbreken, breek af, schei uit
        doe {dat|dit|het} niet, niet doen, doe {niets|niks} {meer|}, ga niet verder
    """,
    objects="dat, dit, alles, ermee, er mee, hiermee, daarmee, met {dat|dit|alles}, de agent",
    around="""
        nu, nou, meteen, direct, onmiddellijk, alsjeblieft, alstublieft, alsjeblief, aub, ajb, nee, snel
        even, eens
        hé, hee, in godsnaam, dringend, wacht, bedankt, ik zei, agent, bot, verdomme, verwijder niets
    """,
)

POLISH: Final = Language(
    stops="""
        stój, stop stop, zatrzymaj, zatrzymaj się, przestań, przestańcie, przerwij, anuluj, dość tego, wstrzymaj
        nie rób {tego|nic|niczego|już nic|nic więcej}, nic nie rób, nie kontynuuj
    """,
    objects="to, wszystko, to wszystko, z tym, tego, agenta",
    around="""
        proszę, natychmiast, teraz, już, szybko, zaraz, w tej chwili, od razu, hej, błagam, blagam, pilne, czekaj
        powiedziałem, powiedziałam, dziękuję, na litość boską, agent, bot
        nie {usuwaj|dotykaj|wysyłaj} {nic|niczego|tego}
    """,
    negations="nie",
)

TURKISH: Final = Language(
    stops="""
        dur, durun, durdur, durdurun, kes {şunu|artık}, kesin şunu, iptal, iptal et, iptal edin, vazgeç, yeter artık
        {bunu|şunu|onu|öyle|böyle} {yapma|yapmayın}, hiçbir şey {yapma|yapmayın}, bırak {şunu|bunu|artık}, devam etme
    """,
    around="""
        lütfen, hemen, şimdi, derhal, artık, hayır, tamam, her şeyi, herşeyi, hepsini, bunu, şunu, onu, acil
        çabuk, ya
        hemen şimdi, abi, yeter, bekle, teşekkürler, allah aşkına, sana, hiçbir şeyi silme
    """,
    denials="{yapma|yapmayın} {lütfen|artık|}",
)

RUSSIAN: Final = Language(
    stops="""
        стоп, стой, стойте, остановись, остановитесь, останови, остановите, остановить, прекрати, прекратите
        прекратить
        перестань, перестаньте, хватит, отмена, отмени, отмените, отменить, прерви, прервать, {стой|стоп} не надо
        не {делай|делайте} {этого|это|так|ничего}, ничего не {делай|делайте|делать}, не {продолжай|продолжайте}
    """,
    objects="все, это, этого, все это, это все, это делать, делать это, агента, работу, выполнение",
    around="""
        пожалуйста, плиз, пж, сейчас, сейчас же, прямо сейчас, немедленно, срочно, быстро, быстрее, скорее, нет
        эй
        уже, прошу, умоляю, сию {минуту|секунду}, я {сказал|сказала}, ради бога, боже, господи, блин, ну, ок
        окей, спасибо
        подожди, агент, бот, ничего не {удаляй|трогай|отправляй}, не {удаляй|трогай|отправляй} {ничего|это}
    """,
    negations="не надо, не нужно",
    never="хватит {это|этого|все}",
)

UKRAINIAN: Final = Language(
    stops="""
        стоп, стій, стійте, зупинись, зупиніться, зупини, зупиніть, зупинити, припини, припиніть, припинити
        досить, годі
        перестань, перестаньте, скасуй, скасувати, відміна, відміни, {стій|стоп} не треба
        не {роби|робіть} {цього|це|так|нічого}, нічого не {роби|робіть}, не {продовжуй|продовжуйте}
    """,
    objects="все, це, цього, все це, це робити, агента, роботу",
    around="""
        будь ласка, негайно, зараз, зараз же, прямо зараз, терміново, швидко, швидше, ні, гей, вже, прошу, благаю
        я {сказав|сказала}, заради бога, боже, ну, ок, дякую, зачекай, агент, бот, нічого не {видаляй|чіпай}
    """,
    negations="не треба, не потрібно",
)

CHINESE: Final = Language(
    stops="""
        停, 停下, 停下{来|來}, 停止, {暂|暫}停, 停手, 住手, 打住, {终|終}止, 取消, 中止, 停一下, 停吧
        {别|別|不要}{做|弄|搞|再做|再弄|再搞|继续|繼續|再继续|再繼續}了, {别|別|不要}{继续|繼續|再继续|再繼續}
        {别|別}{动|動}
        {什么|什麼|甚麼}{都|也}{别|別|不要|不要再}做, {别|別|不要}做任何{事|事情}, {别|別|不要}{这|這|那}{样|樣}{做|}
    """,
    objects="""
        {所有|一切|全部|当前|當前|}操作, 一切, 所有, 全部, {运行|運行|执行|執行}, 工作, {这个|這個|那个|那個}
    """,
    around="""
        {请|請}, 快, 快{点|點}, {马|馬}上, 立刻, 立即, {赶紧|趕緊}, {现|現}在, 全部, 都, {给|給}我, 拜{托|託}
        求你, 求求你
        求你了, {谢谢|謝謝}, 我{说|說}, 喂, 吧, 啊, 呀, 啦, 一下, 你, 等等, 等一下, 天啊, {机器人|機器人}
        {别|別|不要}{删|刪|删除|刪除|碰|发|發|改|动|動}{了|}
    """,
    denials="{别|別}",
    negations="不要",
    spaced=False,
)

JAPANESE: Final = Language(
    stops="""
        やめて, やめろ, やめなさい, やめてくれ, {止|と}めて, {止|と}めろ, {止|と}まって, {止|と}まれ, {止|と}めなさい
        ストップ, 停止, 停止して, 中止, 中止して, 中断, 中断して, キャンセル, キャンセルして, よせ, よして, 動くな
        {何|なに}も{しないで|するな|やらないで}, {それ|これ|それを|これを|そんなこと|そんなことを}{しないで|するな}
        やらないで, {それ|これ|それを|これを}やらないで
    """,
    around="""
        それ, それを, それは, これ, これを, これは, 全部, 全て, すべて, 全てを, すべてを, 今すぐ, すぐ, すぐに
        今, いますぐ
        早く, はやく, 直ちに, ただちに, もう, ください, 下さい, くれ, ちょうだい, 頂戴, お願い, お願いします, おねがい
        おねがいします, 頼む, 頼みます, よ, ね, ってば, って, ぇ, っ, だめ, ダメ, 駄目, いや, いやだ, ちょっと
        待って, 本当に, ほんとに, ボット, エージェント, 何も消さないで, 消さないで, 触らないで
    """,
    spaced=False,
)

KOREAN: Final = Language(
    stops="""
        멈춰, 멈춰라, 멈춰요, 멈추세요, 멈춰줘, 멈춰 줘, 멈춰주세요, 멈춰 주세요, 중지, 중지해, 중지해줘
        중지하세요, 중지해주세요
        중단, 중단해, 중단해줘, 중단하세요, 그만, 그만해, 그만해요, 그만해줘, 그만하세요, 그만 해, 그만 하세요
        그만둬, 그만두세요
        스톱, 스탑, 정지, 정지해, 취소, 취소해, 취소해줘, 취소하세요, 취소해주세요, 그만 좀 해
        아무것도 {하지마|하지 마|하지마세요|하지 마세요}, {그거|그것|이거|그런 거} {하지마|하지 마}
        {그러지마|그러지 마}
    """,
    around="""
        제발, 당장, 지금, 지금 당장, 지금당장, 빨리, 즉시, 어서, 좀, 다, 모두, 전부, 그거, 이거, 그것, 이것
        그냥, 야, 아니
        안돼, 안 돼, 부탁해, 부탁해요, 부탁합니다, 부탁드립니다, 잠깐, 잠깐만, 주세요, 줘, 봇
    """,
    denials="{하지마|하지 마|하지마세요|하지 마세요|하지마요} {제발|}",
)

HINDI: Final = Language(
    stops="""
        रुको, रुकिए, रुकिये, रुक, रुक {जाओ|जाइए|जाइये|जा}, रोको, रोकिए, रोक {दो|दीजिए}, स्टॉप, बस करो, बस कीजिए
        {बंद|बन्द} {करो|करें|कीजिए|कर दो}, {रद्द|कैंसल} {करो|करें|कर दो}
        {ऐसा|यह|ये|वह|कुछ|कुछ भी} मत {करो|करें|कीजिए|करना}
    """,
    around="""
        कृपया, प्लीज, प्लीज़, अभी, अभी के अभी, तुरंत, तुरन्त, फौरन, फ़ौरन, जल्दी, बस, अरे, भाई, यार, सब, सब कुछ
        सबकुछ, यह, ये
        इसे, उसे, इसको, काम, सुनो, ठीक है, धन्यवाद, भगवान के लिए
    """,
    denials="मत {करो|कीजिए} {प्लीज|कृपया|}",
    negations="नहीं",
)

ARABIC: Final = Language(
    stops="""
        توقف, توقفي, توقفوا, قف, أوقف, أوقفه, أوقفها, أوقفي, كفى, كفي, خلاص توقف, ألغ, ألغي, إلغاء, وقف, ستوب
        لا {تفعل|تفعلي} {ذلك|هذا|شيئا|أي شيء|اي شي|هذا الشيء}, لا تفعلها, لا {تكمل|تستمر}
    """,
    objects="""
        ذلك, هذا, عن {ذلك|هذا}, كل شيء, كل شي, عن كل شيء, فعل {ذلك|هذا}, عن فعل {ذلك|هذا}, العمل, عن العمل, الوكيل
    """,
    around="""
        من فضلك, رجاء, لو سمحت, أرجوك, أرجوكم, الآن, حالا, فورا, على الفور, بسرعة, يا, شكرا, خلاص, والله, حسنا
        انتظر, يا روبوت, بوت, عاجل
    """,
    negations="لا",
)

LANGUAGES: Final = {
    "en": ENGLISH,
    "es": SPANISH,
    "fr": FRENCH,
    "de": GERMAN,
    "pt": PORTUGUESE,
    "it": ITALIAN,
    "nl": DUTCH,
    "pl": POLISH,
    "tr": TURKISH,
    "ru": RUSSIAN,
    "uk": UKRAINIAN,
    "zh": CHINESE,
    "ja": JAPANESE,
    "ko": KOREAN,
    "hi": HINDI,
    "ar": ARABIC,
}
"""The languages, by their codes."""
