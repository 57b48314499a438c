/*
 * Seat, generation, takeover, child, report and hold: what the runtime decides in its synchronous steps, nothing else.
 *
 * One process takes one atomic step after another. A step is what the runtime does without an await. At the end of
 * every step `check` tests what must hold. `proofs.model` runs it in two ways:
 *
 *   exhaustively   every order of every step of any number of runs, RUNS of them at a time that are not drained yet;
 *                  with PLANTED=n one rule is broken, and a check must fail
 *   -DREPLAY       along traces recorded from the real runtime: every step must tell the very facts that come next, all
 *                  of them in one turn of the loop; a trace is accepted if its end can be reached
 *
 * A fact that no step tells is refused, and so is a step that does not tell all of its facts: model and code cannot
 * drift apart.
 */

#ifndef RUNS
#define RUNS 3		/* children are runs too */
#endif
#ifndef ROOTS
#define ROOTS 2		/* sessions that people speak to; every child has one of its own */
#endif
#ifndef SESSIONS
#define SESSIONS (ROOTS + RUNS)
#define HOLDS 1
#define PLACES RUNS
#endif
#ifndef ALL
#define ALL true	/* false: no holds, questions or collecting, so that more runs can be searched */
#endif

/* Where a run is in its life. */
#define NOBODY 0
#define ARRIVING 1	/* in its session's line */
#define QUEUED 2
#define SEATED 3
#define STARTED 4
#define FALLEN 5
#define OVER 6		/* drained, withdrawn, turned away, or part of another run */

/* A report (the announcement of a detached child's end) waits for one of these. Messages of people are 0. */
#define NOTE 1		/* its end: a note never has the seat */
#define EARLY 2		/* the child's ending must be public first */
#define RIPE 3		/* the seat */

/* The facts a step tells, and what each carries. */
#define END 0		/* fact: the end of a trace */
#define ARRIVE 1	/* fact: run, session */
#define CHILD 2		/* fact: run, session, parent, detached */
#define QUEUE 3		/* fact: run, does it gather others first? */
#define SEAT 4		/* fact: run, session, generation */
#define START 5		/* fact: run */
#define EFFECT 6	/* fact: run */
#define FALL 7		/* fact: run, generation then, who has the seat then, who took over */
#define LEAVE 8		/* fact: run */
#define RISE 9		/* fact: session, generation */
#define DRAIN 10	/* fact: run */
#define WANT 11		/* fact: run, hold */
#define GRANT 12	/* fact: run, hold, token */
#define TAKE 13		/* fact: run, hold */
#define RELEASE 14	/* fact: run, hold */
#define FORGO 15	/* fact: run, hold */
#define QUESTION 16	/* fact: run */
#define ANSWER 17	/* fact: run */
#define CLOSE 18	/* fact: nothing new is taken */
#define STOP 19		/* fact: session: by someone who may end all of it */
#define JOIN 20		/* fact: run, the waiting one that it will be part of */
#define RIPEN 21	/* fact: run */
#define REPORT 22	/* fact: run, session, the detached child whose end it tells, is it to have a turn? */
#define DUE 23		/* fact: run: what it tells is public, it may have the seat */

/* The mutants: rules that can be broken. */
#define GENERATION_KEPT 1	/* mutant: a fall does not raise the generation */
#define GENERATION_REUSED 2	/* mutant: a seating does not raise the generation */
#define SEAT_KEPT 3		/* mutant: a fall does not free the seat */
#define TWO_SEATED 4		/* mutant: a takeover seats the new run, and the old one falls in a later step */
#define QUEUE_FORGOTTEN 5	/* mutant: an ending does not seat who waits */
#define QUEUED_STAYS 6		/* mutant: a message that was stopped stays in the queue */
#define LINE_FORGOTTEN 7	/* mutant: a stop of the session passes over what has only arrived */
#define DETACHED_ESCAPES 8	/* mutant: a stop of the session passes over detached children */
#define CHILD_STAYS 9		/* mutant: children do not fall with their parent */
#define CHILD_AFTER_FALL 10	/* mutant: a run that fell can still delegate */
#define CHECK_THEN_ACT 11	/* mutant: the fence is asked in one step, the effect admitted in a later one */
#define STARTS_FALLEN 12	/* mutant: a run that fell while its start was written is started */
#define ENDS_TWICE 13		/* mutant: a run that was stopped completes as well */
#define QUESTION_STAYS 14	/* mutant: the question of a run that fell stays open */
#define GRANTED_TWICE 15	/* mutant: a hold is granted while another run has it */
#define GRANT_LOST 16		/* mutant: a hold granted to a run that falls before it took it is not passed on */
#define GRANT_FORGOTTEN 17	/* mutant: a hold that comes free is not granted to who waits for it */
#define WAITER_STAYS 18		/* mutant: a run that fell stays in a hold's line */
#define FREED_AT_FALL 19	/* mutant: a hold is free when its run falls, not when it is drained */
#define LATE_RELEASE 20		/* mutant: a fallen run's own release frees its hold before it is drained */
#define REPORT_TAKES_OVER 21	/* mutant: a report ends who has the seat */
#define REPORT_DROPPED 22	/* mutant: a takeover ends the reports that wait */
#define REPORT_FORGOTTEN 23	/* mutant: nobody seats a report when it is due */
#define REPORT_AHEAD 24		/* mutant: a report goes ahead of what people sent */
#define REPORT_EARLY 25		/* mutant: a report has the seat before what it tells is public */
#define REPORT_ESCAPES 26	/* mutant: a stop of the session passes over the reports that wait */
#define REPORT_OF_A_STOP 27	/* mutant: a child that falls with its home is reported there */

c_decl {
	static int planted;	/* not part of the state, because it never changes */
	struct fact { int step, kind, v[5]; unsigned long falls; };	/* falls: the runs that fall in the rest of its turn */
	static struct fact *facts;
	static int *starts, *furthest, traces;
	static void report(void) {
		for (int t = 0; t < traces; t++)
			printf("trace %d reached %d\n", t, furthest[t]);
	}
	static void load(void) {
		char *plant = getenv("PLANTED"), *path = getenv("TRACES");
		FILE *file = path ? fopen(path, "r") : NULL;
		int n, t = 0;
		planted = plant ? atoi(plant) : 0;
		if (!file || fscanf(file, "%d %d", &traces, &n) != 2)
			return;
		facts = calloc(n, sizeof(*facts));
		starts = calloc(traces, sizeof(int));
		furthest = calloc(traces, sizeof(int));
		for (struct fact *f = facts; f < facts + n; f++) {
			if (fscanf(file, "%d%d%d%d%d%d", &f->step, &f->kind, f->v+1, f->v+2, f->v+3, f->v+4) != 6)
				exit(3);
			if (f->kind == 0 && ++t < traces)
				starts[t] = f + 1 - facts;
		}
		for (struct fact *f = facts + n - 1; f >= facts; f--) {
			if (f->kind && f[1].kind && f[1].step == f->step) f->falls = f[1].falls;
			if (f->kind == 7) f->falls |= 1UL << f->v[1];
		}
		fclose(file);
		atexit(report);
	}
	static void told(int at) {
		int t = traces - 1;
		while (starts[t] >= at) t--;
		if (at - starts[t] > furthest[t]) furthest[t] = at - starts[t];
	}
}

#define broken(m) (c_expr { planted == m })

#ifdef REPLAY
#define NUMBER int
#define QUEUES SESSIONS
#else
#define NUMBER byte
#define QUEUES ROOTS			/* people send no message to a child's session */
#endif

byte state[RUNS + 1];			/* run 0 stands for no run */
byte session[RUNS + 1];
byte home[RUNS + 1];			/* the session at the root of its tree */
byte parent[RUNS + 1];			/* the run it falls with; 0 for a detached child */
NUMBER its[RUNS + 1];			/* the generation it was seated with */
byte asking[RUNS + 1];			/* its open questions */
bool gathers[RUNS + 1];			/* it waits for more messages before it takes the seat */
byte joiner[RUNS + 1];			/* the message that becomes part of it in this step */
byte report[RUNS + 1];			/* while it waits: NOTE, EARLY or RIPE for a report, else 0 */
bool passed[RUNS + 1];			/* CHECK_THEN_ACT: the fence let it pass in an earlier step */
byte has[RUNS + 1];			/* the holds it believes to have, as bits */

byte seat[SESSIONS];
NUMBER generation[SESSIONS];
NUMBER before[SESSIONS];		/* the generation when the step began */
chan arrivals[SESSIONS] = [PLACES] of { byte };
chan queue[SESSIONS] = [PLACES] of { byte };
chan reports[SESSIONS] = [PLACES] of { byte };	/* reports wait until the queue is empty */

byte holder[HOLDS];
bool taken[HOLDS];			/* the run that was granted the hold has taken it */
NUMBER token[HOLDS];
chan line[HOLDS] = [PLACES] of { byte };

bool closing;

bool doomed[RUNS + 1];			/* runs that fall in this step */
byte left;				/* how many doomed runs have not fallen yet */
byte r, c, s, h;			/* variables of one step; all are 0 between steps */
byte over;				/* the run that takes over in this step */
hidden byte i, j;			/* variables of one d_step */
#ifdef REPLAY
int at, begun;				/* the next fact; the fact this step began with */
bool ok = true;
#endif

#define live(n) (state[n] >= ARRIVING && state[n] <= STARTED)
#define seated(n) (state[n] == SEATED || state[n] == STARTED)
#define is_detached(n) (parent[n] == 0 && home[n] != session[n])
#define any(n) true

/*
 * How a step is chosen: freely, or as the next fact says. WHEN opens a step, CHOOSE names the run or session it
 * is about, TELL tells a fact.
 */
#ifdef REPLAY
#define fact(n) (c_expr { facts[now.at].v[n] })
#define NEXT(k) (c_expr { facts[now.at].kind == k })
#define WHEN(k, may) NEXT(k)
#define WHEN_HOLD(k, may) NEXT(k)
#define CHOOSE(v, n, may) (may(fact(n))) -> v = fact(n)
#define CHOOSE_DOOMED (doomed[fact(1)]) -> c = fact(1)
#define CHOOSE_HOLD(may) (may(fact(2))) -> h = fact(2)
#define CHOOSE_SESSION(n) s = fact(n)
#define CHOOSE_SESSION_OF_FALL if :: s = session[fact(1)] :: s = home[fact(1)] fi
#define GIVEN(n, free) fact(n)
#define TELL(k, v1, v2, v3, v4) \
	(NEXT(k) && fact(1) == (v1) && fact(2) == (v2) && fact(3) == (v3) && fact(4) == (v4) && \
	 c_expr { facts[now.at].step == facts[now.begun].step }) -> at++; c_code { told(now.at); }
#define MAY_FALL (c_expr { facts[now.at].falls >> now.c & 1 })
#define BOUND(x) true
#define BEGIN begun = at
#define DONE begun = 0; (ok)
#define CHECK(x) ok = ok && (x)
#define REFUSE false
#define LEAVES OVER
#define nobody(n) (state[n] == NOBODY)
#else
/* Places are alike: only the first free one is used. */
#define nobody(n) (state[n] == NOBODY && (n == 1 || state[n - 1] != NOBODY))
#if RUNS == 2
#define WHEN(k, may) (may(1) || may(2))
#define CHOOSE(v, n, may) if :: may(1) -> v = 1 :: may(2) -> v = 2 fi
#elif RUNS == 3
#define WHEN(k, may) (may(1) || may(2) || may(3))
#define CHOOSE(v, n, may) if :: may(1) -> v = 1 :: may(2) -> v = 2 :: may(3) -> v = 3 fi
#else
#define WHEN(k, may) (may(1) || may(2) || may(3) || may(4))
#define CHOOSE(v, n, may) if :: may(1) -> v = 1 :: may(2) -> v = 2 :: may(3) -> v = 3 :: may(4) -> v = 4 fi
#endif
#define NEXT(k) true
#define WHEN_HOLD(k, may) may(0)
#define CHOOSE_DOOMED d_step { c = 1; do :: doomed[c] -> break :: else -> c++ od }
#define CHOOSE_HOLD(may) h = 0
#define CHOOSE_SESSION(n) if :: s = 0 :: ROOTS > 1 -> s = 1 fi
#define CHOOSE_SESSION_OF_FALL CHOOSE_SESSION(0)
#define GIVEN(n, free) (free)
#define TELL(k, v1, v2, v3, v4) skip
#define MAY_FALL true
#define BOUND(x) (x)
#define BEGIN skip
#define DONE forget()
#define CHECK(x) assert(x)
#define REFUSE skip
#define LEAVES NOBODY		/* another run may have its place */
#endif
#if HOLDS == 1
#define any_hold(is) is(0)
#else
#define any_hold(is) (is(0) || is(1) || is(2) || is(3))
#endif

/* Parts of a step. */

inline give_seat(n)
{
	seat[session[n]] = n;
	state[n] = SEATED;
	if
	:: !broken(GENERATION_REUSED) -> generation[session[n]]++
	:: else
	fi;
	its[n] = generation[session[n]];
	CHECK(its[n] > before[session[n]]);
	CHECK(!report[n] || (report[n] == RIPE && len(queue[session[n]]) == 0));
	report[n] = 0;
	TELL(SEAT, n, session[n], its[n], 0)
}

inline enqueue(n)
{
	queue[session[n]]!n;
	state[n] = QUEUED;
	TELL(QUEUE, n, gathers[n], 0, 0)
}

#define may_be_next(n) (report[n] == RIPE || (report[n] && broken(REPORT_EARLY)))

inline find_next(x)	/* sets c to the next run: the first of the queue, else the first report that is due */
{
	d_step {
		for (j : 1 .. len(reports[x])) {
			reports[x]?i; reports[x]!i;
			if
			:: c == 0 && may_be_next(i) -> c = i
			:: else
			fi
		}
		if
		:: len(queue[x]) > 0 && (c == 0 || !broken(REPORT_AHEAD)) -> queue[x]?<c>
		:: else
		fi
	}
}

inline dequeue(n)
{
	if
	:: report[n] -> reports[session[n]]??eval(n)
	:: else -> queue[session[n]]??eval(n)
	fi
}

inline seat_next(x)
{
	if
	:: seat[x] == 0 && !closing && !broken(QUEUE_FORGOTTEN) ->
		find_next(x);
		if
		:: c == 0 || gathers[c]
		:: else -> dequeue(c); give_seat(c)
		fi;
		c = 0
	:: else
	fi
}

inline seat_everywhere()
{
	for (s : 0 .. QUEUES - 1) { seat_next(s) }
}

#define free_and_wanted(n) (holder[n] == 0 && len(line[n]) > 0 && !broken(GRANT_FORGOTTEN))

inline grant()
{
	line[h]?c;
	CHECK(holder[h] == 0 && live(c) && GIVEN(3, token[h] + 1) > token[h]);
	token[h] = GIVEN(3, token[h] + 1);
	holder[h] = c; taken[h] = false;
	TELL(GRANT, c, h, token[h], 0);
	c = 0; h = 0
}

inline doom(n)
{
	if
	:: live(n) && !doomed[n] -> doomed[n] = true; left++
	:: else
	fi
}

inline doom_children()
{
	d_step {
		for (j : 1 .. RUNS) {	/* once for every level of children that there can be */
			for (i : 1 .. RUNS) {
				if
				:: parent[i] && doomed[parent[i]] && !broken(CHILD_STAYS) -> doom(i)
				:: else
				fi
			}
		}
	}
}

/* A child falls with its parent, whichever run took over; a message that was joining may fall by its own limit. */
#define blamed(n) (session[n] != s || (parent[n] != 0 && GIVEN(4, over) == 0) -> 0 : over)

inline fall(n)
{
	d_step {
		if
		:: seat[session[n]] == n ->
			if
			:: !broken(SEAT_KEPT) -> seat[session[n]] = 0
			:: else
			fi;
			if
			:: !broken(GENERATION_KEPT) -> generation[session[n]]++
			:: else
			fi
		:: else
		fi;
		if
		:: arrivals[session[n]]??[eval(n)] -> arrivals[session[n]]??eval(n)
		:: state[n] == QUEUED && !broken(QUEUED_STAYS) -> dequeue(n)
		:: else
		fi;
		CHECK(over == 0 || (!report[n] && !report[over]));
		state[n] = FALLEN; gathers[n] = false; report[n] = 0; joiner[parent[n]] = 0;
		if
		:: !broken(QUESTION_STAYS) -> asking[n] = 0
		:: else
		fi
	}
	TELL(FALL, n, generation[session[n]], seat[session[n]], blamed(n));
	d_step {
		for (j : 0 .. HOLDS - 1) {
			if
			:: line[j]??[eval(n)] && !broken(WAITER_STAYS) -> line[j]??eval(n)
			:: else
			fi;
			if
			:: holder[j] == n && ((!taken[j] && !broken(GRANT_LOST)) || broken(FREED_AT_FALL)) ->
				holder[j] = 0; taken[j] = false
			:: else
			fi
		}
	}
}

inline settle()		/* doomed runs fall, and holds that come free are granted, before or after the next fall */
{
	do
	:: NEXT(FALL) && left > 0 -> CHOOSE_DOOMED; doomed[c] = false; left--; fall(c); c = 0
	:: NEXT(GRANT) && any_hold(free_and_wanted) -> CHOOSE_HOLD(free_and_wanted); grant()
	:: left == 0 && !any_hold(free_and_wanted) -> break
	od
}

inline report_of(n)	/* a report waits at home from the step in which its child fell; not every child has one */
{
	if
	:: WHEN(REPORT, nobody) && state[n] == FALLEN && is_detached(n) && !closing ->
		CHOOSE(c, 1, nobody);
		state[c] = QUEUED; session[c] = home[n]; home[c] = home[n];
		report[c] = (GIVEN(4, 1) == 1 -> EARLY : NOTE);
		reports[session[c]]!c;
		TELL(REPORT, c, session[c], n, (report[c] == EARLY));
		TELL(QUEUE, c, 0, 0, 0);
		c = 0
	:: true
	fi
}

#define some_fall(are)	/* the runs that the caller may stop */ \
	for (c : 1 .. RUNS) { \
		if \
		:: live(c) && are(c) && MAY_FALL -> doom(c) \
		:: skip \
		fi \
	} \
	c = 0

/* Which run may take which step. */

#define next_in_line(n) (state[n] == ARRIVING && arrivals[session[n]]?[eval(n)] && !closing)
#define busy(n) (seat[session[n]] != 0 || len(queue[session[n]]) > 0)
#define may_be_seated(n) (next_in_line(n) && seat[session[n]] == 0)
#define may_be_queued(n) (next_in_line(n) && (busy(n) || ALL))
#define may_be_joined(n) \
	(ALL && state[n] == QUEUED && !report[n] && joiner[n] == 0 && len(arrivals[session[n]]) > 0 && !closing)
#define may_ripen(n) (state[n] == QUEUED && gathers[n] && joiner[n] == 0)
#define may_be_taken_over(n) \
	((seated(n) || (state[n] == QUEUED && !report[n] && seat[session[n]] == 0)) && \
	 len(arrivals[session[n]]) > 0 && !closing)
#define may_be_due(n) (state[n] == QUEUED && report[n] == EARLY && !closing)
#define is_taken_in(n) (report[n] == RIPE && seat[session[n]] != 0)	/* a report that waits leaves in no other way */
#define may_leave(n) \
	((state[n] == ARRIVING || state[n] == SEATED || (state[n] == QUEUED && (!report[n] || is_taken_in(n)))) && \
	 joiner[n] == 0)
#define may_start(n) (state[n] == SEATED || (state[n] == FALLEN && broken(STARTS_FALLEN)))
#define may_act(n) (state[n] == STARTED || (passed[n] && broken(CHECK_THEN_ACT)))
#define may_ask(n) (ALL && state[n] == STARTED && BOUND(!asking[n]))
#define may_delegate(n) (state[n] == STARTED || (state[n] == FALLEN && broken(CHILD_AFTER_FALL)))
#define may_end(n) (live(n) || (state[n] == FALLEN && broken(ENDS_TWICE)))
#define may_be_drained(n) (state[n] == FALLEN)
#define may_want(n) (ALL && state[n] == STARTED && holder[h] != n && !(line[h]??[eval(n)]))
#define may_forgo(n) (state[n] == STARTED && ((line[h]??[eval(n)]) || (holder[h] == n && !taken[h])))
#define may_take(n) (holder[n] != 0 && !taken[n] && live(holder[n]))
#define may_release(n) (holder[n] != 0 && taken[n] && (live(holder[n]) || broken(LATE_RELEASE)))
#define waits(n) (state[n] == QUEUED && session[n] == s && (!report[n] || broken(REPORT_DROPPED)))
#define is_here(n) (session[n] == s || home[n] == s)
#define has_asked(n) (asking[n] > 0)

/* What must hold at the end of every step. */

inline check()
{
	d_step {
		for (i : 1 .. RUNS) {
			CHECK(!seated(i) || (seat[session[i]] == i && its[i] == generation[session[i]]));
			CHECK(state[i] != QUEUED || (report[i] -> reports[session[i]]??[eval(i)] : queue[session[i]]??[eval(i)]));
			CHECK(!live(i) || parent[i] == 0 || live(parent[i]));
			CHECK(state[i] != FALLEN || its[i] == 0 || its[i] < generation[session[i]]);
			CHECK(report[i] != RIPE || seat[session[i]] != 0 || len(queue[session[i]]) > 0 || closing);
			CHECK(live(i) || (!asking[i] && seat[session[i]] != i));
			CHECK(live(i) || !(queue[session[i]]??[eval(i)] || reports[session[i]]??[eval(i)]));
			for (j : 0 .. HOLDS - 1) {
				CHECK(!(has[i] & (1 << j)) || (holder[j] == i && taken[j]));
				CHECK(!(line[j]??[eval(i)]) || (state[i] == STARTED && holder[j] != i))
			}
		}
		for (i : 0 .. SESSIONS - 1) {
			CHECK(seat[i] == 0 || (seated(seat[i]) && session[seat[i]] == i));
			if
			:: seat[i] == 0 && len(queue[i]) > 0 -> queue[i]?<j>; CHECK(gathers[j] || closing)
			:: else
			fi;
			CHECK(generation[i] >= before[i]);
			before[i] = generation[i]
		}
		for (j : 0 .. HOLDS - 1) {
			CHECK(holder[j] != 0 || len(line[j]) == 0);
			CHECK(holder[j] == 0 || (taken[j] -> (has[holder[j]] & (1 << j)) != 0 : live(holder[j])))
		}
	}
}

/*
 * Numbers that only rise would make the search endless. A check of them that held in this step holds for good, because
 * they never sink: so the search may forget by how much they rose, and everything of a fallen run that no step reads.
 */
inline forget()
{
	d_step {
		for (i : 1 .. RUNS) {
			if
			:: !live(i) -> its[i] = 0; session[i] = 0; home[i] = 0; parent[i] = 0
			:: seated(i) -> its[i] = 1
			:: else
			fi
		}
		for (i : 0 .. SESSIONS - 1) { generation[i] = (seat[i] != 0); before[i] = generation[i] }
		for (j : 0 .. HOLDS - 1) { token[j] = 0 }
	}
}

active proctype control()
{
	c_code { load(); };
#ifdef REPLAY
	do
	:: c_expr { now.begun < traces - 1 } -> begun++
	:: c_expr { now.begun < traces } -> break
	od;
	c_code { now.at = starts[now.begun]; now.begun = 0; };
#endif
	do
	:: atomic {
		BEGIN;
		if

		/* A message stands in its session's line at once, and is decided on in the order of arrival. */
		:: WHEN(ARRIVE, nobody) ->
			CHOOSE(r, 1, nobody);
			CHOOSE_SESSION(2);
			state[r] = ARRIVING; session[r] = s; home[r] = s; arrivals[s]!r;
			TELL(ARRIVE, r, s, 0, 0)
		:: WHEN(SEAT, may_be_seated) ->
			CHOOSE(r, 1, may_be_seated);
			arrivals[session[r]]?eval(r);
			give_seat(r)
		:: WHEN(QUEUE, may_be_queued) ->
			CHOOSE(r, 1, may_be_queued);
			arrivals[session[r]]?eval(r);
			if
			:: GIVEN(2, 0) == 0 && busy(r)
			:: GIVEN(2, 1) == 1 && ALL -> gathers[r] = true
			fi;
			enqueue(r)
		:: WHEN(JOIN, may_be_joined) ->
			CHOOSE(c, 2, may_be_joined);
			arrivals[session[c]]?r;
			parent[r] = c; joiner[c] = r; gathers[c] = true;
			TELL(JOIN, r, c, 0, 0)
		:: WHEN(RIPEN, may_ripen) ->
			CHOOSE(r, 1, may_ripen);
			gathers[r] = false;
			TELL(RIPEN, r, 0, 0, 0);
			s = session[r];
			seat_next(s)
		:: WHEN(FALL, may_be_taken_over) ->
			CHOOSE(c, 1, may_be_taken_over);
			s = session[c];
			arrivals[s]?r;
			if
			:: !broken(TWO_SEATED) -> doom(c)
			:: else
			fi;
			over = r;
			some_fall(waits); doom_children(); settle();
			over = 0;
			if
			:: give_seat(r)
			:: len(queue[s]) > 0 -> seat_next(s); enqueue(r)	/* a message of someone else is overdue */
			fi
		:: WHEN(LEAVE, may_leave) ->		/* refused, a duplicate, or withdrawn after a failed commit */
			CHOOSE(r, 1, may_leave);
			s = session[r];
			d_step {
				if
				:: arrivals[s]??[eval(r)] -> arrivals[s]??eval(r)
				:: state[r] == QUEUED -> dequeue(r)
				:: state[r] == SEATED -> seat[s] = 0
				:: else
				fi;
				state[r] = LEAVES; gathers[r] = false; report[r] = 0; joiner[parent[r]] = 0; parent[r] = 0
			}
			TELL(LEAVE, r, 0, 0, 0);
			seat_next(s)

		/* A report has the seat when its child's ending is public and no message waits. */
		:: WHEN(DUE, may_be_due) ->
			CHOOSE(r, 1, may_be_due);
			report[r] = RIPE;
			TELL(DUE, r, 0, 0, 0);
			s = session[r];
			if
			:: seat[s] != 0 && broken(REPORT_TAKES_OVER) ->
				over = r; doom(seat[s]); doom_children(); settle();
				over = 0
			:: else
			fi;
			if
			:: !broken(REPORT_FORGOTTEN) -> seat_next(s)
			:: else
			fi

		/* A run starts, has effects, asks, delegates. */
		:: WHEN(START, may_start) ->
			CHOOSE(r, 1, may_start);
			CHECK(live(r));
			state[r] = STARTED;
			TELL(START, r, 0, 0, 0)
		:: WHEN(EFFECT, may_act) ->
			CHOOSE(r, 1, may_act);
			if
			:: broken(CHECK_THEN_ACT) && !passed[r] -> passed[r] = true
			:: else -> passed[r] = false; CHECK(state[r] == STARTED)
			fi;
			TELL(EFFECT, r, 0, 0, 0)
		:: WHEN(QUESTION, may_ask) ->
			CHOOSE(r, 1, may_ask);
			asking[r]++;
			TELL(QUESTION, r, 0, 0, 0)
		:: WHEN(ANSWER, has_asked) ->
			CHOOSE(r, 1, has_asked);
			asking[r]--;
			TELL(ANSWER, r, 0, 0, 0)
		:: WHEN(CHILD, may_delegate) && WHEN(CHILD, nobody) ->
			CHOOSE(c, 3, may_delegate);
			CHOOSE(r, 1, nobody);
			s = GIVEN(2, ROOTS + r - 1);
			if
			:: GIVEN(4, 0) == 0 -> parent[r] = c
			:: GIVEN(4, 1) == 1
			fi;
			state[r] = ARRIVING; session[r] = s; home[r] = home[c]; arrivals[s]!r;
			CHECK(live(c));
			TELL(CHILD, r, s, c, (parent[r] == 0))

		/* Endings: of one run, whatever the cause; of the runs that someone may stop; of a whole session. */
		:: WHEN(FALL, may_end) ->
			CHOOSE(r, 1, may_end);
			CHECK(live(r));
			doom(r); doom_children(); settle(); report_of(r); seat_everywhere()
		:: WHEN(FALL, live) ->
			CHOOSE_SESSION_OF_FALL;
			some_fall(is_here); doom_children(); settle(); seat_everywhere()
		:: NEXT(STOP) ->
			CHOOSE_SESSION(1);
			r = s;
			TELL(STOP, s, 0, 0, 0);
			d_step {
				for (c : 1 .. RUNS) {
					if
					:: state[c] == ARRIVING && broken(LINE_FORGOTTEN)
					:: is_detached(c) && broken(DETACHED_ESCAPES)
					:: report[c] && broken(REPORT_ESCAPES)
					:: is_here(c) -> doom(c)
					:: else
					fi
				}
				c = 0
			}
			doom_children(); settle();
			for (h : 1 .. RUNS) {
				if
				:: is_here(h) && (home[h] != s || broken(REPORT_OF_A_STOP)) -> report_of(h)
				:: else		/* a child that fell with its home is not announced there */
				fi
			}
			seat_everywhere();
			s = r;
			d_step { for (c : 1 .. RUNS) { CHECK(!live(c) || !is_here(c)) } }
		:: NEXT(RISE) ->		/* a stop that found no run; or the store knew a higher number */
			CHOOSE_SESSION(1);
			if
			:: seat[s] == 0 && GIVEN(2, generation[s] + 1) > generation[s] ->
				generation[s] = GIVEN(2, generation[s] + 1);
				TELL(RISE, s, generation[s], 0, 0)
			:: else -> REFUSE
			fi
		:: NEXT(CLOSE) && !closing ->	/* waiting messages are kept for the next control */
			closing = true;
			TELL(CLOSE, 0, 0, 0, 0)
		:: WHEN(DRAIN, may_be_drained) ->
			CHOOSE(r, 1, may_be_drained);
			TELL(DRAIN, r, 0, 0, 0);
			d_step {
				state[r] = LEAVES; has[r] = 0; passed[r] = false;
				for (j : 0 .. HOLDS - 1) {
					if
					:: holder[j] == r && taken[j] -> holder[j] = 0; taken[j] = false
					:: else
					fi
				}
			}
			settle()

		/* Holds. */
		:: WHEN(WANT, may_want) ->
			CHOOSE_HOLD(any);
			CHOOSE(r, 1, may_want);
			line[h]!r;
			TELL(WANT, r, h, 0, 0);
			if
			:: broken(GRANTED_TWICE) -> holder[h] = 0
			:: else
			fi;
			settle()
		:: WHEN_HOLD(TAKE, may_take) ->
			CHOOSE_HOLD(may_take);
			r = holder[h]; taken[h] = true; has[r] = has[r] | (1 << h);
			TELL(TAKE, r, h, 0, 0)
		:: WHEN_HOLD(RELEASE, may_release) ->
			CHOOSE_HOLD(may_release);
			r = holder[h]; holder[h] = 0; taken[h] = false;
			if
			:: live(r) -> has[r] = has[r] & ~(1 << h)
			:: else				/* its body still runs */
			fi;
			TELL(RELEASE, r, h, 0, 0);
			settle()
		:: WHEN(FORGO, may_forgo) ->		/* the run waits no longer for the hold */
			CHOOSE_HOLD(any);
			CHOOSE(r, 1, may_forgo);
			if
			:: holder[h] == r -> holder[h] = 0
			:: else -> line[h]??eval(r)
			fi;
			TELL(FORGO, r, h, 0, 0);
			settle()
		fi;
		r = 0; c = 0; s = 0; h = 0;
		check();
		DONE
	}
	od
}
