//! The table of seeded bugs, and the bug that this thread has switched on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A seeded bug. Its comment describes the wrong behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Two answers that are ready leave in the wrong order.
    SwapReplies,
    /// An answer leaves although an earlier one is outstanding.
    Overtake,
    /// The last key of a get of three or more is never sent.
    DropFragment,
    /// A key goes to the server after its own.
    Misroute,
    /// The link stays open after a deadline, so that a late answer meets the next request.
    AnswerAfterTimeout,
    /// A further link that cannot be made takes its server out of service.
    FurtherLinkFails,
    /// The words of a server that takes no further connection are no sign that it is there.
    IgnoreFull,
    /// Answers on other links are no sign that a server works.
    IgnoreLife,
    /// A server is given up after half of its deadline.
    HurryReply,
    /// A silent server is waited for without a deadline.
    NoReplyDeadline,
    /// An update goes ahead of a get that the same client has in the open batch.
    MergeAcrossOwnWrite,
    /// A get is sent again although its client has sent a change since.
    AskAgainPastWrite,
    /// An update without an answer is not sent.
    ForgetNoreply,
    /// An update without an answer is answered.
    AnswerNoreply,
    /// An update whose link died is sent again.
    ResendUpdate,
    /// A read that changes something is sent again.
    ResendTouch,
    /// An update that may have been executed is reported as not sent.
    ForgetSent,
    /// A block goes to a server that has not shown that it executes blocks.
    BlockUntried,
    /// A transaction is executed although a request of it was refused.
    ForgetAbort,
    /// The requests of a transaction go to the server of the first.
    QueueApart,
    /// A block goes where its keys were, and is allowed what its requests were, when it was queued.
    TrustOldPlan,
    /// A client takes the private link of another.
    SharePrivate,
    /// Private links stay when their client needs them no more.
    KeepPrivate,
    /// Keys stay watched on a link whose client does not watch them any more.
    KeepWatch,
    /// A transaction is sent although what its client watches may have changed unnoticed.
    ForgetLostWatch,
    /// A transaction is sent although a request to watch keys for it has failed unsent.
    KeepUnwatched,
    /// A wait takes a shared link.
    WaitOnShared,
    /// A client's requests are sent behind its wait.
    SendBehindWait,
    /// A wait has the deadline of a reply.
    TimeWait,
    /// A server that is waited at counts as silent.
    HoldWait,
    /// A message goes to all subscribers of a pool.
    PushToOthers,
    /// A message is pushed twice.
    PushTwice,
    /// A message does not reach the last of several who listen.
    LosePush,
    /// A message is pushed into the middle of an answer.
    SplitReply,
    /// A message is pushed before the acknowledgement of its topic, or what has waited for one.
    PushEarly,
    /// Of two messages that wait for an answer before them, the newer is pushed first.
    ReversePushes,
    /// A subscription is acknowledged before the servers have.
    AcknowledgeEarly,
    /// Subscribers stay when a link with their subscriptions is lost.
    KeepLostSubscribers,
    /// A new link is told only one of the topics that clients listen to.
    ForgetTopics,
    /// A server is not told that nobody listens to a topic any more.
    KeepTopic,
    /// The last step of a block is taken for its reply.
    EarlyBlockEnd,
    /// A block that was sent whole and lost is reported as not executed.
    BlockNeverSent,
    /// The entry of a request whose client has left is never freed.
    LeakRequest,
    /// The bytes of a client that has left stay in the account.
    LeakMemory,
    /// A failed part of a multi-key get looks like a miss.
    SilentMiss,
    /// A value goes to the next key that waits, whatever that key is.
    PairByPosition,
    /// A reply that cannot be an answer is skipped, and the rest is believed.
    BelievePoison,
    /// A data block with the wrong end is sent on.
    SkipTrailer,
    /// A broadcast goes to the first server only.
    FlushOneServer,
    /// A client that sends requests without end is never paused.
    NeverPause,
    /// A client that was paused is never read again.
    NeverResume,
    /// A client that takes nothing is not read on.
    AheadNeverOpens,
    /// The blocks that are kept of a client are overtaken by its later input.
    AheadOvertaken,
    /// The blocks that are kept of a client are not read.
    ForgetAhead,
    /// A client that writes without end and reads nothing is never closed.
    KeepUnread,
    /// Such a client is closed as soon as no more of it is kept.
    HurryUnread,
    /// Requests that were kept of a client that has gone are counted for ever.
    KeepFreed,
    /// Requests that were not sent move to another link, past those of their clients that were.
    MoveOwed,
    /// A link takes more than its queue holds.
    NoQueueBound,
    /// A server that is down is never probed.
    NeverProbe,
    /// A client that has closed its half is closed before it has its answers.
    CloseEarly,
    /// The pending ACK of a partial request is not sent at once.
    ForgetAck,
    /// The pending ACK of whole requests is sent at once, by a call of its own.
    WasteAck,
    /// A decision to eject a server, or to let it back, does not change the ring.
    KeepRing,
    /// Another plan does not change the ring.
    OldRing,
    /// A server in maintenance is asked.
    ServeMaint,
    /// A server that drains keeps its keys, although they may move.
    KeepDrained,
    /// Messages that wait for a server are dropped when it leaves the plan.
    DropQueue,
    /// The same plan again closes a link.
    CloseUnchanged,
    /// The links of a server that has left the plan stay open.
    KeepRetired,
    /// Timers are not set anew for deadlines that another plan has brought nearer.
    ForgetRearm,
    /// A client's next request takes another link than the one before, which is outstanding.
    SwitchConnKey,
    /// A server is believed down because we could make no socket.
    BlameServer,
    /// A barrier is answered before all earlier requests are settled.
    EarlyBarrier,
    /// A read that would show marks is sent in a form that does not.
    HideMarks,
    /// An answer has the opaque of the request before.
    LoseOpaque,
    /// A read that makes one client fill an item is sent again when its link has died.
    WinTwice,
    /// Messages to a silent server are sent all the same.
    NeverHold,
    /// Another worker's record of a silent server is not looked up.
    SendToSilent,
    /// The requests of a client that has left are sent when its server wakes.
    KeepCancelled,
    /// A request that a client waits for is dropped.
    DropWaitedFor,
    /// A client that changes its database stays on the links of the old one.
    KeepConnKey,
    /// The next requests of such a client do not wait for its earlier ones.
    OvertakeConnKey,
    /// A request is sent again although its client has sent more since.
    RepeatPastOthers,
    /// The first part of a gathered answer counts twice.
    CountTwice,
    /// The first part of a gathered answer does not count.
    LosePart,
    /// The elements of a gathered list are shifted by one.
    ShiftElements,
    /// One server's error is left out of an answer gathered from several.
    SwallowError,
    /// The bytes that belong to a key of a split request are sent with the key before.
    ShiftRests,
    /// A change to several servers is sent to those that can be asked, if others cannot.
    SendToSome,
    /// A request whose keys belong to different servers goes to the server of the first.
    SendApart,
    /// A request for a server by its index goes to the next one.
    ScanElsewhere,
    /// A piece of a reply is taken for the whole, and the rest for the reply to the next request.
    PieceForWhole,
    /// A client whose reply broke off in the middle gets an error after the beginning.
    NeverCutOff,
    /// A dead link's request is sent again in the database that its client uses by now.
    AskWithOtherConnKey,
    /// A request is sent again whatever error its server returned.
    RepeatExecuted,
    /// The reply to an internal command is given to a client.
    InternalToClient,
    /// The script cache learns nothing.
    NeverLearn,
    /// A client that has turned its answers off gets them.
    IgnoreMute,
    /// A client that has turned off the next answer gets no more answers.
    SkipForEver,
    /// A value that is refused as too large leaves the old value of its key.
    ForgetRemoval,
    /// The reply clock of a server runs while the kernel still takes the request.
    BlameEarly,
    /// A quiet change behind the last loud request of a client that has left is dropped.
    DropQuiet,
    /// A server is held after the same time, whatever the path to it.
    HoldNear,
    /// A client that closes its half right behind its last request counts as gone.
    DropHalfClosed,
    /// The pause between probes stays long after a recovery.
    KeepPause,
    /// An ejected server that has answered a probe is not asked again.
    ProbeOnce,
    /// Gets that gather have no deadline.
    GatherForEver,
    /// A deadline that has come is not seen to, and is set again.
    SpinTimer,
    /// A reply that keeps coming has no deadline.
    SpeakForEver,
    /// A server that speaks again is held as before.
    HoldForEver,
    /// Held messages are not sent when the hold ends.
    LeaveHeld,
    /// Gets that gather do not leave when there is room for them.
    LeaveGathered,
    /// A client that waits for a handshake is not read when it has come.
    AwaitForEver,
    /// A client that has closed in the middle of a request is never closed.
    KeepHalfAsked,
    /// A client in the middle of a request is cut off at the end of its worker.
    CutHalfAsked,
    /// Memory is refused although most of it is free.
    HoardMemory,
    /// Pools and servers that have left the plan keep their places.
    NeverVacate,
    /// A client that has had its share of a turn is never read again.
    ForgetShare,
    /// A client's queue of a link is never served.
    ForgetQueue,
    /// A request is sent although requests of its client wait for the same link.
    PassWaiting,
    /// A message that costs more than the in-flight limit is never sent.
    LimitNeverOpens,
    /// A waiting request that nobody waits for any more is sent.
    SendCancelled,
    /// A change that its client has waited for in vain and asks for again is sent all the same.
    KeepGivenUp,
    /// Half of the cost of a message stays in flight when the message has gone.
    CostLeaks,
    /// A client's turn at a link does not cost it anything.
    FreeOfCost,
    /// A queue is given a quantum although its client has nothing waiting and owes nothing.
    GatherCredit,
    /// The in-flight limit falls in one round as far as the round says.
    LimitFallsAtOnce,
    /// A client that has filled its share of a link's queue is never read again.
    NeverRoom,
    /// A client takes links of another class although something of it is outstanding.
    ChangeClassAtOnce,
    /// The time of works that are outstanding at a server is not bounded.
    WorkWithoutBound,
    /// A client goes around a link although something of it is outstanding.
    OvertakeAround,
    /// A client may have any number of slow requests outstanding.
    SlowWithoutLimit,
    /// A client takes the link for large requests, or leaves it, although something of it is
    /// outstanding.
    LargeWithoutPause,
    /// A slow request that has had its time is taken off its link, so that its late reply meets the
    /// next request.
    ForgetSlow,
    /// The link for slow requests is closed when one of them has had its time.
    EndSlow,
    /// Each worker counts wrong logins for itself.
    LoginsPerWorker,
    /// A right login counts as a wrong one.
    KeepLoginToken,
    /// A login that waits for its turn is never called.
    ForgetLogin,
    /// Each worker has the limits of a tenant for itself.
    LimitPerWorker,
    /// A client that is handed over is not its user's any more.
    LoseTenant,
    /// A request that is read again is charged again.
    ForgetRefund,
}

/// The bugs that the random story of subscriptions finds (`tests/it/topics_at_random.rs`).
pub static TOPIC_BUGS: &[Bug] = &[
    Bug::PushToOthers,
    Bug::PushTwice,
    Bug::LosePush,
    Bug::SplitReply,
    Bug::PushEarly,
    Bug::ReversePushes,
    Bug::AcknowledgeEarly,
    Bug::KeepLostSubscribers,
    Bug::ForgetTopics,
    Bug::KeepTopic,
];

/// The bugs that the random story of waits finds (`tests/it/waits_at_random.rs`).
pub static WAIT_BUGS: &[Bug] = &[
    Bug::WaitOnShared,
    Bug::SendBehindWait,
    Bug::TimeWait,
    Bug::HoldWait,
    Bug::SharePrivate,
    Bug::KeepPrivate,
];

/// The bugs that the simulator finds.
pub static BUGS: &[Bug] = &[
    Bug::SwapReplies,
    Bug::Overtake,
    Bug::DropFragment,
    Bug::Misroute,
    Bug::AnswerAfterTimeout,
    Bug::FurtherLinkFails,
    Bug::IgnoreFull,
    Bug::IgnoreLife,
    Bug::HurryReply,
    Bug::NoReplyDeadline,
    Bug::MergeAcrossOwnWrite,
    Bug::AskAgainPastWrite,
    Bug::ForgetNoreply,
    Bug::AnswerNoreply,
    Bug::ResendUpdate,
    Bug::ResendTouch,
    Bug::ForgetSent,
    Bug::LeakRequest,
    Bug::LeakMemory,
    Bug::SilentMiss,
    Bug::PairByPosition,
    Bug::BelievePoison,
    Bug::SkipTrailer,
    Bug::FlushOneServer,
    Bug::NeverPause,
    Bug::NeverResume,
    Bug::AheadNeverOpens,
    Bug::AheadOvertaken,
    Bug::ForgetAhead,
    Bug::KeepUnread,
    Bug::HurryUnread,
    Bug::KeepFreed,
    Bug::MoveOwed,
    Bug::NoQueueBound,
    Bug::NeverProbe,
    Bug::CloseEarly,
    Bug::ForgetAck,
    Bug::WasteAck,
    Bug::KeepRing,
    Bug::OldRing,
    Bug::ServeMaint,
    Bug::KeepDrained,
    Bug::DropQueue,
    Bug::CloseUnchanged,
    Bug::KeepRetired,
    Bug::ForgetRearm,
    Bug::SwitchConnKey,
    Bug::BlameServer,
    Bug::EarlyBarrier,
    Bug::HideMarks,
    Bug::LoseOpaque,
    Bug::WinTwice,
    Bug::NeverHold,
    Bug::SendToSilent,
    Bug::KeepCancelled,
    Bug::DropWaitedFor,
    Bug::KeepConnKey,
    Bug::OvertakeConnKey,
    Bug::RepeatPastOthers,
    Bug::CountTwice,
    Bug::LosePart,
    Bug::ShiftElements,
    Bug::SwallowError,
    Bug::ShiftRests,
    Bug::SendToSome,
    Bug::SendApart,
    Bug::ScanElsewhere,
    Bug::PieceForWhole,
    Bug::NeverCutOff,
    Bug::AskWithOtherConnKey,
    Bug::RepeatExecuted,
    Bug::InternalToClient,
    Bug::NeverLearn,
    Bug::IgnoreMute,
    Bug::SkipForEver,
    Bug::ForgetRemoval,
    Bug::BlameEarly,
    Bug::DropQuiet,
    Bug::HoldNear,
    Bug::DropHalfClosed,
    Bug::KeepPause,
    Bug::ProbeOnce,
    Bug::GatherForEver,
    Bug::SpinTimer,
    Bug::SpeakForEver,
    Bug::HoldForEver,
    Bug::LeaveHeld,
    Bug::LeaveGathered,
    Bug::AwaitForEver,
    Bug::KeepHalfAsked,
    Bug::CutHalfAsked,
    Bug::HoardMemory,
    Bug::NeverVacate,
    Bug::ForgetShare,
    Bug::ForgetQueue,
    Bug::PassWaiting,
    Bug::LimitNeverOpens,
    Bug::SendCancelled,
    Bug::KeepGivenUp,
    Bug::CostLeaks,
    Bug::FreeOfCost,
    Bug::GatherCredit,
    Bug::LimitFallsAtOnce,
    Bug::NeverRoom,
    Bug::ChangeClassAtOnce,
    Bug::OvertakeAround,
    Bug::WorkWithoutBound,
    Bug::SlowWithoutLimit,
    Bug::LargeWithoutPause,
    Bug::ForgetSlow,
    Bug::EndSlow,
    Bug::LoginsPerWorker,
    Bug::KeepLoginToken,
    Bug::ForgetLogin,
    Bug::LimitPerWorker,
    Bug::LoseTenant,
    Bug::BlockUntried,
    Bug::ForgetAbort,
    Bug::QueueApart,
    Bug::TrustOldPlan,
    Bug::SharePrivate,
    Bug::KeepPrivate,
    Bug::KeepWatch,
    Bug::ForgetLostWatch,
    Bug::KeepUnwatched,
    Bug::EarlyBlockEnd,
    Bug::BlockNeverSent,
    Bug::ForgetRefund,
];

thread_local! {
    static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    /// The heads of updates without data that `ResendUpdate` sends again, by request.
    static SENT: RefCell<BTreeMap<u32, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Switches a bug on in this thread's data planes, or all bugs off.
pub fn switch(bug: Option<Bug>) {
    ON.set(bug);
    SENT.take();
}

pub fn is_on(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// Keeps the bytes of an update that is sent for a request.
pub(crate) fn remember(pending: u32, text: Vec<u8>) {
    SENT.with_borrow_mut(|sent| sent.insert(pending, text));
}

/// Returns the bytes that were sent for a request.
pub(crate) fn recall(pending: u32) -> Option<Vec<u8>> {
    SENT.with_borrow_mut(|sent| sent.remove(&pending))
}
