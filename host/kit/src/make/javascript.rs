//! JavaScript: `plugin.js` with an engine around it, by componentize-js with every feature that would import WASI off.

use super::{read, scratch};
use crate::embedded::SUPPORT;
use crate::error::KitError;
use crate::project::Project;
use crate::run::{Tool, has};

/// Run by node: componentize-js is a library. Its path, the world and the files are arguments.
const SCRIPT: &str = "
const [library, source, witPath, worldName, out] = process.argv.slice(1);
const { componentize } = await import(library);
const { readFile, writeFile } = await import('node:fs/promises');
const disableFeatures = ['stdio', 'random', 'clocks', 'http', 'fetch-event'];
const { component } = await componentize(await readFile(source, 'utf8'), { witPath, worldName, disableFeatures });
await writeFile(out, component);
";

pub fn component(project: &Project) -> Result<Vec<u8>, KitError> {
    if !has("node", "--version") {
        let fix = "node 20 or newer is needed; on Debian `apt-get install nodejs npm`".into();
        return Err(KitError::ToolMissing { tool: "node".into(), fix });
    }
    let library = project.folder.join("node_modules/@bytecodealliance/componentize-js/src/componentize.js");
    if !library.is_file() {
        // What `package.json` names; nothing of it ends up in the component but the engine.
        Tool::new("npm", &project.folder).args(["install", "--no-audit", "--no-fund", "--silent"]).run()?;
    }
    let out = scratch(project)?.join(format!("{}.wasm", project.name));
    let tool = Tool::new("node", &project.folder).args(["--input-type=module", "--eval", SCRIPT, "--"]);
    let tool = tool.arg(&library).arg(project.folder.join("plugin.js")).arg(project.folder.join(SUPPORT).join("wit"));
    tool.arg(project.kind.world()).arg(&out).run()?;
    read(&out)
}
