//! Logins for registries, from a file in the form that container tools write: `{"auths": {HOST: {"auth": BASE64}}}`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use super::OciError;
use crate::hub::Secret;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Who to be at which registry. A login goes to its own registry and to no other.
#[derive(Clone, Debug, Default)]
pub struct Logins(BTreeMap<String, (String, Secret)>);

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct Login {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Logins {
    pub fn read(path: &Path) -> Result<Self, OciError> {
        let fault = |message: &str| OciError::file(path, message);
        let size = std::fs::metadata(path).map_err(|e| OciError::file(path, e))?.len();
        if size > FILE_BYTES_MAX {
            return Err(fault("it is too long for a file of logins"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| OciError::file(path, e))?;
        let file: File = serde_json::from_str(&text).map_err(|e| OciError::file(path, e))?;
        let mut logins = BTreeMap::new();
        for (host, login) in file.auths {
            let pair = match (login.auth, login.username, login.password) {
                (Some(auth), ..) => {
                    let bytes = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                    let pair = bytes.and_then(|pair| pair.split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())));
                    pair.ok_or_else(|| fault(&format!("auths.{host}.auth is not USER:PASSWORD in base64")))?
                }
                (None, Some(username), Some(password)) => (username, password),
                _ => return Err(fault(&format!("auths.{host} has neither `auth` nor `username` and `password`"))),
            };
            logins.insert(host, (pair.0, Secret(pair.1)));
        }
        Ok(Self(logins))
    }

    pub(super) fn at(&self, registry: &str) -> RegistryAuth {
        match self.0.get(registry) {
            Some((user, password)) => RegistryAuth::Basic(user.clone(), password.0.clone()),
            None => RegistryAuth::Anonymous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_read_as_container_tools_write_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logins.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Logins::read(&path).map_err(|e| e.to_string())
        };
        let logins =
            read(r#"{"auths": {"a:5000": {"auth": "dXNlcjpwYXNz"}, "b": {"username": "u", "password": "p"}}}"#);
        let logins = logins.unwrap();
        assert_eq!(logins.at("a:5000"), RegistryAuth::Basic("user".into(), "pass".into()));
        assert_eq!(logins.at("b"), RegistryAuth::Basic("u".into(), "p".into()));
        assert_eq!(logins.at("c"), RegistryAuth::Anonymous);
        assert!(!format!("{logins:?}").contains("pass"), "a log shows no password");
        for (wrong, needle) in [
            ("{", "EOF"),
            (r#"{"auths": {"a": {"auth": "!"}}}"#, "auths.a.auth"),
            (r#"{"auths": {"a": {}}}"#, "auths.a has neither"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(needle) && error.contains("logins.json"), "{error}");
        }
    }
}
