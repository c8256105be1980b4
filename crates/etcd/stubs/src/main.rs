//! Writes the stubs that `tenure-etcd` compiles, so that its users need no protobuf compiler.
//! Run it as `cargo xtask stubs` after a change of `etcd.proto`.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = std::env::temp_dir().join(format!("tenure-stubs-{}", std::process::id()));
    std::fs::create_dir_all(&made)?;
    let outcome = write(here, &made);
    std::fs::remove_dir_all(&made)?;
    outcome
}

fn write(here: &Path, made: &Path) -> Result<(), Box<dyn Error>> {
    let parsed = protox::compile([here.join("etcd.proto")], [here])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .out_dir(made)
        .compile_fds(parsed)?;
    let stubs = std::fs::read_to_string(made.join("etcdserverpb.rs"))?;
    std::fs::write(here.join("../src/rpc.rs"), stubs)?;
    Ok(())
}
