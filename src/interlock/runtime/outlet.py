"""The one way out for the events of a run.

1. Every event of a run goes through its Outlet. One synchronous step tests the fence and publishes the event: the feed
   gives it its position, appends it to the log and hands it to every sink, together with the fence as its source.
2. `seal` publishes the terminal event: the run's last, and exactly one.
3. Deltas, typing and progress (`PASSING`) count only while their run goes on. After an early end no sink passes them on
   (it reads the source), and when the run's end is published they leave the log. Their text stands in the block that
   closed them, or in `cut` of the terminal event. So a replay is short and tells the same conversation.

Were the test of the fence and the publication two steps, a stop could be acknowledged between them, and a delta, a
typing sign or a tool result of the old run would follow the ack (races 10, 11, 34 and 37). Were there a second way out,
an event could follow the terminal event (race 100). A run that is only in the store has no fence any more: recovery
publishes its end with `seal_stored`.
"""

from collections.abc import Iterable

from interlock.agent.bounds import REPLY_BYTES
from interlock.core.decision import RunRow
from interlock.core.errors import BadInput
from interlock.core.events import Block, Data, Delta, Ended, MessageData
from interlock.core.names import REPORTS, Effect, RunId
from interlock.core.values import need_utf8
from interlock.runtime.feed import Feed
from interlock.runtime.live import LiveRun


class Outlet:
    """The way out of one run."""

    __slots__ = ("_feed", "_run")

    def __init__(self, run: LiveRun, feed: Feed) -> None:
        self._run = run
        self._feed = feed

    def emit(self, effect: Effect, data: Data) -> None:
        """Publish an effect of a current run, or raise Stale.

        The test and the publication are one step: between them there is no await in which a stop could be acknowledged.
        """
        self._run.fence.check(effect)
        self._publish(data)

    def delta(self, text: str) -> None:
        """Publish a piece of the reply."""
        run = self._run
        # Read the fence's mark directly: a call of `Fence.check` for every delta would cost too much.
        if run.fence.cause is not None:
            raise run.fence.refuse(Effect.DELTA)
        if not text:
            return
        self.measure(text)
        run.reply.add(text)
        self._feed.publish(run.session.id, run, Delta(text=text), run.fence)

    def block(self, text: str) -> None:
        """Publish a whole block; the open deltas before it become a block of their own."""
        self._run.fence.check(Effect.BLOCK)
        if not text:
            return
        self.measure(text)
        self.close_block(Effect.BLOCK)
        self._run.reply.close(text)
        self._publish(Block(text=text))

    def close_block(self, effect: Effect) -> None:
        """Close the open block of deltas, if there is one."""
        self._run.fence.check(effect)
        if text := self._run.reply.open:
            self._run.reply.close(text)
            self._publish(Block(text=text))

    def measure(self, text: str) -> None:
        """Raise BadInput for text that is not valid UTF-8, or would make the reply too long."""
        need_utf8(text, "the reply")
        if self._run.reply.bytes + len(text) > REPLY_BYTES:
            raise BadInput(
                f"this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
            )

    def introduce(self) -> None:
        """Publish the message that began the run, once, before any other event of it.

        Its text is left out if the session had no owner when the message ended: a later owner must not read it.
        """
        run = self._run
        if not run.message_published:
            run.message_published = True
            nobodys = run.generation is None and not run.session.stored
            text = "" if run.withheld or nobodys else run.arrival.text
            self._publish(MessageData(text=text, by=run.principal, child=_announced(run)))
            for part in run.ties.collected:
                self.introduce_part(part)

    def introduce_part(self, part: LiveRun) -> None:
        """Publish a message that this run has absorbed; the run's terminal event must not be published yet."""
        assert not self._run.end_published, "nothing follows a run's terminal event"
        told = MessageData(text=part.arrival.text, by=part.principal, of=part.id, child=_announced(part))
        self._publish(told)

    def seal(self, terminal: Ended, closing: tuple[str, ...]) -> None:
        """Publish the blocks that close the reply and then the terminal event, in one step."""
        assert self._run.fallen, "a run is sealed after it fell"
        assert not self._run.end_published, f"run {self._run.id} was told as ended twice"
        self.introduce()
        self._run.end_published = True
        for text in closing:
            self._publish(Block(text=text))
        self._publish(terminal)

    @staticmethod
    def seal_stored(feed: Feed, row: RunRow, terminal: Ended, *, said: bool, closing: Iterable[str]) -> None:
        """Publish the end of a run that is only in the store, as `seal` would have done before the crash."""
        if not said:
            child = RunId(row.key) if row.kind in REPORTS and row.key is not None else None
            feed.publish(row.session, row, MessageData(text=row.text, by=row.principal, child=child))
        for text in closing:
            feed.publish(row.session, row, Block(text=text))
        feed.publish(row.session, row, terminal)

    def _publish(self, data: Data) -> None:
        self._feed.publish(self._run.session.id, self._run, data, self._run.fence)


def _announced(run: LiveRun) -> RunId | None:
    """Return the child whose ending a message announces, or None."""
    return None if run.ties.announces is None else run.ties.announces.run_id
