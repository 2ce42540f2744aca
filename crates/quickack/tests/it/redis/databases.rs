//! A pool may have fewer databases than its servers: no client reaches the others.

use testkit::process::Family;

use super::{addresses, quickack, servers};

#[test]
fn no_command_reaches_into_a_database_that_the_pool_does_not_have() {
    let servers = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&servers), &["databases: 2"]);
    let mut client = quickack.client();
    let refused = "-ERR DB index is out of range\r\n";
    client.ask("SELECT 2\r\n", refused);
    client.ask("SET a 1\r\n", "+OK\r\n");
    client.ask("MOVE a 2\r\n", refused);
    client.ask("COPY a b DB 2\r\n", refused);
    client.ask("COPY a b DB 1\r\n", ":1\r\n");
    client.ask("MOVE a 1\r\n", ":1\r\n");
    client.ask("SELECT 1\r\n", "+OK\r\n");
    client.ask("MGET a b\r\n", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}
