//! The indexes in the table of those commands that other files name.

use super::lookup::row_of;

#[cfg(test)]
pub use tests::*;

const fn id(name: &str) -> u16 {
    row_of(name.as_bytes())
}

pub const ACL_GENPASS: u16 = id("acl|genpass");
pub const ACL_WHOAMI: u16 = id("acl|whoami");
pub const AUTH: u16 = id("auth");
pub const BLMPOP: u16 = id("blmpop");
pub const BZMPOP: u16 = id("bzmpop");
pub const CLIENT_GETNAME: u16 = id("client|getname");
pub const CLIENT_ID: u16 = id("client|id");
pub const CLIENT_INFO: u16 = id("client|info");
pub const CLIENT_KILL: u16 = id("client|kill");
pub const CLIENT_LIST: u16 = id("client|list");
pub const CLIENT_NO_EVICT: u16 = id("client|no-evict");
pub const CLIENT_NO_TOUCH: u16 = id("client|no-touch");
pub const CLIENT_PAUSE: u16 = id("client|pause");
pub const CLIENT_REPLY: u16 = id("client|reply");
pub const CLIENT_SETINFO: u16 = id("client|setinfo");
pub const CLIENT_SETNAME: u16 = id("client|setname");
pub const CLIENT_UNBLOCK: u16 = id("client|unblock");
pub const CLIENT_UNPAUSE: u16 = id("client|unpause");
pub const COMMAND: u16 = id("command");
pub const COMMAND_COUNT: u16 = id("command|count");
pub const COMMAND_DOCS: u16 = id("command|docs");
pub const COMMAND_GETKEYS: u16 = id("command|getkeys");
pub const COMMAND_GETKEYSANDFLAGS: u16 = id("command|getkeysandflags");
pub const COMMAND_INFO: u16 = id("command|info");
pub const COMMAND_LIST: u16 = id("command|list");
pub const CONFIG_GET: u16 = id("config|get");
pub const COPY: u16 = id("copy");
pub const DBSIZE: u16 = id("dbsize");
pub const DEL: u16 = id("del");
pub const ECHO: u16 = id("echo");
pub const EVAL: u16 = id("eval");
pub const EVALSHA: u16 = id("evalsha");
pub const EVALSHA_RO: u16 = id("evalsha_ro");
pub const EVAL_RO: u16 = id("eval_ro");
pub const EXEC: u16 = id("exec");
pub const EXISTS: u16 = id("exists");
pub const FCALL: u16 = id("fcall");
pub const FCALL_RO: u16 = id("fcall_ro");
pub const FLUSHALL: u16 = id("flushall");
pub const FUNCTION_LIST: u16 = id("function|list");
pub const FUNCTION_STATS: u16 = id("function|stats");
pub const GEORADIUS: u16 = id("georadius");
pub const GEORADIUSBYMEMBER: u16 = id("georadiusbymember");
pub const GET: u16 = id("get");
pub const HELLO: u16 = id("hello");
pub const INFO: u16 = id("info");
pub const KEYS: u16 = id("keys");
pub const LASTSAVE: u16 = id("lastsave");
pub const LATENCY_HELP: u16 = id("latency|help");
pub const LATENCY_HISTORY: u16 = id("latency|history");
pub const LATENCY_LATEST: u16 = id("latency|latest");
pub const LATENCY_RESET: u16 = id("latency|reset");
pub const LMPOP: u16 = id("lmpop");
pub const MODULE_LIST: u16 = id("module|list");
pub const MONITOR: u16 = id("monitor");
pub const MOVE: u16 = id("move");
pub const MSET: u16 = id("mset");
pub const MSETEX: u16 = id("msetex");
pub const MULTI: u16 = id("multi");
pub const PING: u16 = id("ping");
pub const PSUBSCRIBE: u16 = id("psubscribe");
pub const PUBLISH: u16 = id("publish");
pub const PUBSUB_CHANNELS: u16 = id("pubsub|channels");
pub const PUBSUB_NUMPAT: u16 = id("pubsub|numpat");
pub const PUBSUB_NUMSUB: u16 = id("pubsub|numsub");
pub const PUBSUB_SHARDCHANNELS: u16 = id("pubsub|shardchannels");
pub const PUBSUB_SHARDNUMSUB: u16 = id("pubsub|shardnumsub");
pub const PUNSUBSCRIBE: u16 = id("punsubscribe");
pub const QUIT: u16 = id("quit");
pub const RANDOMKEY: u16 = id("randomkey");
pub const READONLY: u16 = id("readonly");
pub const READWRITE: u16 = id("readwrite");
pub const RESET: u16 = id("reset");
pub const ROLE: u16 = id("role");
pub const SCAN: u16 = id("scan");
pub const SCRIPT_EXISTS: u16 = id("script|exists");
pub const SCRIPT_FLUSH: u16 = id("script|flush");
pub const SCRIPT_LOAD: u16 = id("script|load");
pub const SELECT: u16 = id("select");
pub const SET: u16 = id("set");
pub const SINTERCARD: u16 = id("sintercard");
pub const SORT: u16 = id("sort");
pub const SORT_RO: u16 = id("sort_ro");
pub const SPUBLISH: u16 = id("spublish");
pub const SSUBSCRIBE: u16 = id("ssubscribe");
pub const SUBSCRIBE: u16 = id("subscribe");
pub const SUNSUBSCRIBE: u16 = id("sunsubscribe");
pub const SWAPDB: u16 = id("swapdb");
pub const SLOWLOG_GET: u16 = id("slowlog|get");
pub const SLOWLOG_HELP: u16 = id("slowlog|help");
pub const SLOWLOG_LEN: u16 = id("slowlog|len");
pub const SLOWLOG_RESET: u16 = id("slowlog|reset");
pub const TIME: u16 = id("time");
pub const TOUCH: u16 = id("touch");
pub const UNLINK: u16 = id("unlink");
pub const UNSUBSCRIBE: u16 = id("unsubscribe");
pub const UNWATCH: u16 = id("unwatch");
pub const WATCH: u16 = id("watch");
pub const XREAD: u16 = id("xread");
pub const XREADGROUP: u16 = id("xreadgroup");
pub const ZMPOP: u16 = id("zmpop");

/// Those that only tests name.
#[cfg(test)]
mod tests {
    use super::id;

    pub const ACL_USERS: u16 = id("acl|users");
    pub const BGSAVE: u16 = id("bgsave");
    pub const COMMANDLOG_LEN: u16 = id("commandlog|len");
    pub const CONFIG_SET: u16 = id("config|set");
    pub const FUNCTION_KILL: u16 = id("function|kill");
    pub const FUNCTION_LOAD: u16 = id("function|load");
    pub const SAVE: u16 = id("save");
    pub const SCRIPT_KILL: u16 = id("script|kill");
}
