//! The table of mistakes, and which of them this thread makes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A mistake. The comment says what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Two answers that are ready leave in the wrong order.
    SwapReplies,
    /// An answer leaves although an earlier one is outstanding.
    Overtake,
    /// The last key of a get of three or more is never asked for.
    DropFragment,
    /// A key goes to the server after its own.
    Misroute,
    /// The link stays open after a deadline, so that a late answer meets the next request.
    AnswerAfterTimeout,
    /// A server is given up after half its time.
    HurryReply,
    /// A silent server is waited for without end.
    NoReplyDeadline,
    /// An update goes ahead of a get that the same client has in the open batch.
    MergeAcrossOwnWrite,
    /// A get is asked again although its client has asked for a change since.
    AskAgainPastWrite,
    /// An update without an answer is not sent.
    ForgetNoreply,
    /// An update without an answer is answered.
    AnswerNoreply,
    /// An update whose link died is sent again.
    ResendUpdate,
    /// A read that changes something is asked again.
    ResendTouch,
    /// An update that may have been executed is reported as not sent.
    ForgetSent,
    /// A row whose client has left is never freed.
    LeakRow,
    /// The bytes of a client that has left stay in the account.
    LeakMemory,
    /// A failed part of a multi-key get looks like a miss.
    SilentMiss,
    /// A value goes to the next key that waits, whatever its name.
    PairByPosition,
    /// What cannot be an answer is skipped, and the rest is believed.
    BelievePoison,
    /// A data block with the wrong end is sent on.
    SkipTrailer,
    /// A broadcast goes to the first server only.
    FlushOneServer,
    /// A client that asks without end is never paused.
    NeverPause,
    /// A client that was paused is never read again.
    NeverResume,
    /// A link takes more than its queue holds.
    NoQueueBound,
    /// A server that is down is never asked whether it is back.
    NeverProbe,
    /// A client that has closed its half is closed before it is answered.
    CloseEarly,
    /// The pending ACK of a piece of a request is not sent at once.
    ForgetAck,
    /// The pending ACK of whole requests is sent at once, by a call of its own.
    WasteAck,
    /// A decision to eject a server, or to let it back, does not change the ring.
    KeepRing,
    /// Another plan does not change the ring.
    OldRing,
    /// What waits for a server that leaves the plan is dropped.
    DropQueue,
    /// The same plan again closes a link.
    CloseUnchanged,
    /// The links of a server that has left the plan stay open.
    KeepRetired,
    /// Deadlines that another plan has brought nearer are not looked at.
    ForgetRearm,
    /// A client's next request takes another link than the one before, which is outstanding.
    SwitchLane,
    /// A server is believed down because we could make no socket.
    BlameServer,
    /// A barrier is answered before what was asked before it is settled.
    EarlyBarrier,
    /// A read that would tell of marks is asked in a form that does not.
    HideMarks,
    /// An answer bears the opaque of the request before.
    LoseOpaque,
    /// A read that tells one client to fill an item is asked again when its link has died.
    WinTwice,
    /// A silent server is sent whatever comes.
    NeverHold,
    /// What another worker knows of a silent server is not asked for.
    SendToSilent,
    /// What a client has asked that has left is sent when its server wakes.
    KeepAbandoned,
    /// What a client waits for is dropped.
    DropWaitedFor,
    /// A client that goes to another database stays on the links of the one it was in.
    KeepLane,
    /// Its next requests do not wait for those that it asked before.
    OvertakeLane,
    /// A request is asked again although its client has asked for more since.
    RepeatPastOthers,
    /// The first part of a gathered answer counts twice.
    CountTwice,
    /// The first part of a gathered answer does not count.
    LosePart,
    /// The elements of a gathered list are shifted by one.
    ShiftElements,
    /// The error of one server is left out of what several say.
    SwallowError,
    /// What belongs to a key of a split request is sent with the key before.
    ShiftRests,
    /// A change at several servers is sent to those that can be asked, if others cannot.
    SendToSome,
    /// A request whose keys live apart goes to the server of the first.
    SendApart,
    /// What goes to a server by its place goes to the next one.
    ScanElsewhere,
    /// A piece of a reply is taken for all of it, and the rest for what answers the next.
    PieceForWhole,
    /// A client whose reply broke in the middle is told an error behind its beginning.
    NeverCutOff,
    /// What a dead link carried is asked again in the database where its client is by now.
    AskInOtherLane,
    /// A request is asked again whatever error its server has told.
    RepeatExecuted,
    /// The reply to what only the proxy asked is given to a client.
    ErrandToClient,
    /// What servers were taught is not remembered.
    NeverLearn,
    /// A client that wants no answers gets them.
    IgnoreMute,
    /// A client that does not want the next answer gets no more of them.
    SkipForEver,
    /// A value that is refused as too large leaves what is stored under its key.
    ForgetRemoval,
    /// The reply clock of a server runs while the kernel still takes the request.
    BlameEarly,
    /// A quiet change behind the last loud request of a client that has left is dropped.
    DropQuiet,
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
    /// What was held is not sent when the hold ends.
    LeaveHeld,
    /// Gets that gather do not leave when there is room for them.
    LeaveGathered,
    /// A client that waits for a greeting is not read when it has come.
    AwaitForEver,
    /// A client that has closed in the middle of a request is never closed.
    KeepHalfAsked,
    /// Memory is refused although most of it is free.
    HoardMemory,
    /// What has left the plan keeps its row.
    NeverVacate,
}

/// All of them.
pub static BUGS: &[Bug] = &[
    Bug::SwapReplies,
    Bug::Overtake,
    Bug::DropFragment,
    Bug::Misroute,
    Bug::AnswerAfterTimeout,
    Bug::HurryReply,
    Bug::NoReplyDeadline,
    Bug::MergeAcrossOwnWrite,
    Bug::AskAgainPastWrite,
    Bug::ForgetNoreply,
    Bug::AnswerNoreply,
    Bug::ResendUpdate,
    Bug::ResendTouch,
    Bug::ForgetSent,
    Bug::LeakRow,
    Bug::LeakMemory,
    Bug::SilentMiss,
    Bug::PairByPosition,
    Bug::BelievePoison,
    Bug::SkipTrailer,
    Bug::FlushOneServer,
    Bug::NeverPause,
    Bug::NeverResume,
    Bug::NoQueueBound,
    Bug::NeverProbe,
    Bug::CloseEarly,
    Bug::ForgetAck,
    Bug::WasteAck,
    Bug::KeepRing,
    Bug::OldRing,
    Bug::DropQueue,
    Bug::CloseUnchanged,
    Bug::KeepRetired,
    Bug::ForgetRearm,
    Bug::SwitchLane,
    Bug::BlameServer,
    Bug::EarlyBarrier,
    Bug::HideMarks,
    Bug::LoseOpaque,
    Bug::WinTwice,
    Bug::NeverHold,
    Bug::SendToSilent,
    Bug::KeepAbandoned,
    Bug::DropWaitedFor,
    Bug::KeepLane,
    Bug::OvertakeLane,
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
    Bug::AskInOtherLane,
    Bug::RepeatExecuted,
    Bug::ErrandToClient,
    Bug::NeverLearn,
    Bug::IgnoreMute,
    Bug::SkipForEver,
    Bug::ForgetRemoval,
    Bug::BlameEarly,
    Bug::DropQuiet,
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
    Bug::HoardMemory,
    Bug::NeverVacate,
];

thread_local! {
    static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    /// What `ResendUpdate` sends again: the heads of updates without data, by row.
    static SENT: RefCell<BTreeMap<u32, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on this thread's data planes make that mistake, or none.
pub fn switch(bug: Option<Bug>) {
    ON.set(bug);
    SENT.take();
}

pub fn is_on(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// An update of these bytes is sent for a row.
pub(crate) fn remember(row: u32, text: Vec<u8>) {
    SENT.with_borrow_mut(|sent| sent.insert(row, text));
}

/// What was sent for a row.
pub(crate) fn recall(row: u32) -> Option<Vec<u8>> {
    SENT.with_borrow_mut(|sent| sent.remove(&row))
}
