//! Any text as a configuration: reading, tag patterns and rendering end without panic and within their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tributary::config::{Diagnostics, FixedEnvironment, LoadOptions, load};
use tributary::router::pattern::TagPatterns;

/// Panics of the Ruby parser are caught where it is called; everybody else's end the run.
fn abort_on_own_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let of_the_ruby_parser = info.location().is_some_and(|place| place.file().contains("lib-ruby-parser"));
        if !of_the_ruby_parser {
            default(info); // prints and aborts
        }
    }));
}

fuzz_target!(init: abort_on_own_panics(), |data: &[u8]| {
    let environment = FixedEnvironment { host_name: "host".into(), ..FixedEnvironment::default() }
        .with_variable("FOO", "bar")
        .with_file("main.conf", data)
        .with_file("other.conf", "k v\n");
    let options = LoadOptions { environment: &environment, worker_id: Some(1), ..LoadOptions::default() };
    let mut diagnostics = Diagnostics::new();
    let document = load("main.conf".as_ref(), &options, &mut diagnostics);
    assert!(document.is_some() || diagnostics.has_faults());
    let _ = diagnostics.render();
    for rule in document.iter().flat_map(|document| &document.rules) {
        if let Ok(patterns) = TagPatterns::parse(rule.pattern()) {
            let _ = patterns.matches(b"a.b.c");
        }
    }
    if let Some(document) = document {
        let _ = document.dump(&|_| None);
    }
});
