//! The native form of a file is the same configuration.

use super::super::{Source, compile_for, native, read};
use super::*;

/// Of every valid file that there is.
#[test]
fn the_native_form_of_each_file_compiles_to_the_same_configuration() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/config");
    let mut count = 0;
    for kind in ["wild", "twemproxy", "native"] {
        for entry in fs::read_dir(format!("{folder}/{kind}")).unwrap() {
            let path = entry.unwrap().path();
            let Some(config) = read(&path).config else { continue };
            let text = native(&config);
            let source = Source::Attached(&config.attachments);
            let outcome = compile_for("native", &text, &[], processors(), source);
            let report = outcome.report.render_text();
            let again = outcome.config.unwrap_or_else(|| panic!("{path:?}\n{text}\n{report}"));
            assert_eq!(shown(&again), shown(&config), "{path:?}\n{text}");
            assert_eq!(again.plan.tenants, config.plan.tenants, "{path:?}\n{text}");
            assert!(!text.contains("auto_eject_hosts") && !text.contains("redis: on"), "{text}");
            assert_eq!(native(&again), text, "nothing is left to do");
            count += 1;
        }
    }
    assert!(count >= 30, "only {count} files");
}

#[test]
fn directives_get_the_names_of_our_own_and_units() {
    let text = "\
# A comment.
alpha:
  listen: 127.0.0.1:22121
  redis: true
  timeout: 400
  server_retry_timeout: 30000
  auto_eject_hosts: false
  redis_auth: 'it''s # secret'
  servers:
   - '[::1]:6379:1 one'
'global':
  listen: /tmp/x 0777
  timeout: 0
  hash_tag: '{}'
  servers: [/tmp/y:1]
";
    let expected = "\
alpha:
  listen: 127.0.0.1:22121
  protocol: redis
  timeout: 400ms
  server_retry_timeout: 30s
  on_failure: fail_fast
  redis_auth: 'it''s # secret'
  servers:
   - '[::1]:6379:1 one'

global:
  listen: /tmp/x 0777
  hash_tag: \"{}\"
  servers:
   - /tmp/y:1
";
    assert_eq!(native(&config(text)), expected);
}
