//! The checked-in code is what the `.proto` files give. `WAYSIDE_BLESS=1` writes it anew.

use std::path::{Path, PathBuf};

const FILES: [&str; 4] = ["job", "vehicle", "cloud", "admin"];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a temporary folder");
    let names: Vec<PathBuf> = FILES
        .iter()
        .map(|name| format!("wayside/v1/{name}.proto").into())
        .collect();
    let descriptors = protox::compile(&names, [root.join("proto")]).expect("valid .proto files");

    let bless = std::env::var_os("WAYSIDE_BLESS").is_some();
    let mut differing = Vec::new();
    for (name, services) in [("messages.rs", false), ("services.rs", true)] {
        let folder = out.path().join(name);
        std::fs::create_dir(&folder).expect("a fresh folder");
        let mut builder = tonic_prost_build::configure()
            .build_client(services)
            .build_server(services)
            .out_dir(&folder);
        if services {
            // The messages are there already, without tonic.
            builder = builder.extern_path(".wayside.v1", "crate::wire");
        }
        builder
            .compile_fds(descriptors.clone())
            .expect("code for valid descriptors");
        let fresh = std::fs::read(folder.join("wayside.v1.rs")).expect("one file for the package");
        let target = root.join("src/gen").join(name);
        if bless {
            std::fs::write(&target, &fresh).expect("a writable source folder");
        } else if std::fs::read(&target).ok().as_ref() != Some(&fresh) {
            differing.push(name);
        }
    }
    assert!(
        differing.is_empty(),
        "src/gen/{differing:?} differ from proto/; run with WAYSIDE_BLESS=1"
    );
}
