//! The binary. Everything it does is in the library, so that tests run the same code.

fn main() -> std::process::ExitCode {
    server::run(std::env::args_os().collect())
}
