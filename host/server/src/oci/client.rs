//! Talking to a registry.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use oci_client::client::{Client, ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use plugin_host::COMPONENT_BYTES_MAX;
use tokio::io::AsyncWrite;

use super::cache::hex;
use super::{CASES_TYPE, COMPONENT_TYPE, CONFIG_TYPE, Fetched, Logins, MANIFEST_TYPE, OciError, OciPlace, OciPlugin};

/// A plugin's manifest and cases are pages of text.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// What every registry must take of an image manifest; ours have a kilobyte.
const IMAGE_BYTES_MAX: u64 = 4 << 20;
/// Of what a registry says to an error.
const MESSAGE_BYTES_MAX: usize = 512;
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Silence from the registry.
const READ_TIME: Duration = Duration::from_secs(30);

/// Fetches all parts of a plugin.
pub(super) fn pull(plugin: &OciPlugin, logins: &Logins) -> Result<Fetched, OciError> {
    let fault = |error: OciDistributionError| explain(&plugin.to_string(), &plugin.place.registry, error);
    let place = &plugin.place;
    let digest = format!("sha256:{}", plugin.digest);
    let reference = Reference::with_digest(place.registry.clone(), place.repository.clone(), digest.clone());
    within_runtime(async {
        let client = client(place);
        let login = logins.at(&place.registry);
        let token = client.auth(&reference, &login, RegistryOperation::Pull).await.map_err(fault)?;
        let image = image(place, &digest, token, &login, &plugin.to_string()).await?;
        let found = hex(&image);
        if found != plugin.digest {
            let (reference, expected) = (plugin.to_string(), plugin.digest.clone());
            return Err(OciError::WrongDigest { reference, what: "the image manifest".into(), expected, found });
        }
        let manifest: OciImageManifest = serde_json::from_slice(&image)
            .map_err(|e| OciError::Registry { reference: plugin.to_string(), message: e.to_string() })?;
        let layer = |media_type: &str| manifest.layers.iter().find(|layer| layer.media_type == media_type);
        let Some(component) = layer(COMPONENT_TYPE) else {
            let types: Vec<&str> = manifest.layers.iter().map(|layer| layer.media_type.as_str()).collect();
            let found = if types.is_empty() { "none".into() } else { types.join(", ") };
            return Err(OciError::NoComponent { reference: plugin.to_string(), found });
        };
        let blob = async |layer: Option<&OciDescriptor>, what: &'static str, limit_bytes: u64| {
            let Some(layer) = layer else { return Ok(None) };
            let found_bytes = u64::try_from(layer.size).unwrap_or(u64::MAX);
            if found_bytes > limit_bytes {
                return Err(OciError::TooBig { reference: plugin.to_string(), what, found_bytes, limit_bytes });
            }
            let mut bytes = Bounded { bytes: Vec::new(), bytes_max: limit_bytes };
            client.pull_blob(&reference, layer, &mut bytes).await.map_err(fault)?;
            Ok(Some(bytes.bytes))
        };
        Ok(Fetched {
            component: blob(Some(component), "the component", COMPONENT_BYTES_MAX).await?.unwrap_or_default(),
            manifest: blob(layer(MANIFEST_TYPE), "plugin.toml", TEXT_BYTES_MAX).await?,
            cases: blob(layer(CASES_TYPE), "the case file", TEXT_BYTES_MAX).await?,
            image,
        })
    })
}

/// Pushes a component with its manifest and its cases; gives the reference to it.
pub fn push(component: &Path, place: &OciPlace, logins: &Logins) -> Result<OciPlugin, OciError> {
    let read = |path: &Path| match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(OciError::file(path, e)),
    };
    let own = read(component)?.ok_or_else(|| OciError::file(component, "there is no such file"))?;
    let mut layers = vec![ImageLayer::new(own, COMPONENT_TYPE.into(), None)];
    for (extension, media_type) in [("toml", MANIFEST_TYPE), ("cases.jsonl", CASES_TYPE)] {
        let bytes = read(&component.with_extension(extension))?;
        layers.extend(bytes.map(|bytes| ImageLayer::new(bytes, media_type.into(), None)));
    }
    let config = Config::new(b"{}".to_vec(), CONFIG_TYPE.into(), None);
    let image = OciImageManifest {
        media_type: Some(OCI_IMAGE_MEDIA_TYPE.into()),
        ..OciImageManifest::build(&layers, &config, None)
    };
    let fault = |error: OciDistributionError| explain(&place.to_string(), &place.registry, error);
    within_runtime(async {
        let client = client(place);
        let login = logins.at(&place.registry);
        // A registry wants a name; what is asked for later is the digest.
        let tag = Reference::with_tag(place.registry.clone(), place.repository.clone(), "latest".into());
        client.auth(&tag, &login, RegistryOperation::Push).await.map_err(fault)?;
        client.push(&tag, &layers, config, &login, Some(image)).await.map_err(fault)?;
        let token = client.auth(&tag, &login, RegistryOperation::Pull).await.map_err(fault)?;
        let image = self::image(place, "latest", token, &login, &place.to_string()).await?;
        Ok(OciPlugin { place: place.clone(), digest: hex(&image) })
    })
}

/// An image manifest as it is sent. The client's own function for it takes whatever size a registry sends.
async fn image(
    place: &OciPlace,
    version: &str,
    token: Option<String>,
    login: &RegistryAuth,
    reference: &str,
) -> Result<Vec<u8>, OciError> {
    let fault = |error: reqwest::Error| explain(reference, &place.registry, error.into());
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIME).read_timeout(READ_TIME).build();
    let scheme = if place.is_here() { "http" } else { "https" };
    let url = format!("{scheme}://{}/v2/{}/manifests/{version}", place.registry, place.repository);
    let request = client.map_err(fault)?.get(&url).header("accept", OCI_IMAGE_MEDIA_TYPE);
    let request = match (token, login) {
        (Some(token), _) => request.bearer_auth(token),
        (None, RegistryAuth::Basic(user, password)) => request.basic_auth(user, Some(password)),
        (None, _) => request,
    };
    let mut answer = request.send().await.map_err(fault)?;
    let limit_bytes = IMAGE_BYTES_MAX;
    let too_big = |found_bytes: u64| OciError::TooBig {
        reference: reference.to_owned(),
        what: "the image manifest",
        found_bytes,
        limit_bytes,
    };
    if let Some(found_bytes) = answer.content_length().filter(|bytes| *bytes > limit_bytes) {
        return Err(too_big(found_bytes));
    }
    let mut image = Vec::new();
    while let Some(more) = answer.chunk().await.map_err(fault)? {
        // What was announced need not be what comes.
        if (image.len() + more.len()) as u64 > limit_bytes {
            return Err(too_big((image.len() + more.len()) as u64));
        }
        image.extend_from_slice(&more);
    }
    let code = answer.status();
    if !code.is_success() {
        let message = String::from_utf8_lossy(&image[..image.len().min(MESSAGE_BYTES_MAX)]).into_owned();
        let error = OciDistributionError::ServerError { code: code.as_u16(), url, message };
        return Err(explain(reference, &place.registry, error));
    }
    Ok(image)
}

fn client(place: &OciPlace) -> Client {
    // The same library that the model hub's client uses; an error says that somebody chose it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = place.is_here().then(|| place.registry.clone());
    Client::new(ClientConfig {
        protocol: ClientProtocol::HttpsExcept(plain.into_iter().collect()),
        platform_resolver: None,
        connect_timeout: Some(CONNECT_TIME),
        read_timeout: Some(READ_TIME),
        ..ClientConfig::default()
    })
}

/// The callers are threads that may wait; the client is written for a runtime.
fn within_runtime<T>(work: impl Future<Output = Result<T, OciError>>) -> Result<T, OciError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| OciError::Registry { reference: "oci".into(), message: e.to_string() })?;
    runtime.block_on(work)
}

/// A buffer with an end: a registry may send more than it announced.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: u64,
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        if (self.bytes.len() + more.len()) as u64 > self.bytes_max {
            return Poll::Ready(Err(io::Error::other(format!("more than {} bytes", self.bytes_max))));
        }
        self.bytes.extend_from_slice(more);
        Poll::Ready(Ok(more.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn explain(reference: &str, registry: &str, error: OciDistributionError) -> OciError {
    use OciDistributionError as E;
    let (reference, registry, message) = (reference.to_owned(), registry.to_owned(), error.to_string());
    match error {
        E::UnauthorizedError { .. } | E::AuthenticationFailure(_) => {
            OciError::Unauthorised { reference, registry, message }
        }
        E::ImageManifestNotFoundError(_) | E::ServerError { code: 404, .. } => {
            OciError::NotFound { reference, message }
        }
        E::ServerError { code: 401 | 403, .. } => OciError::Unauthorised { reference, registry, message },
        E::RegistryError { envelope, .. } => match envelope.errors.first().map(|error| &error.code) {
            Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => {
                OciError::Unauthorised { reference, registry, message }
            }
            Some(
                OciErrorCode::ManifestUnknown
                | OciErrorCode::NameUnknown
                | OciErrorCode::BlobUnknown
                | OciErrorCode::ManifestBlobUnknown
                | OciErrorCode::NotFound,
            ) => OciError::NotFound { reference, message },
            _ => OciError::Registry { reference, message },
        },
        E::RequestError(error) if error.is_connect() || error.is_timeout() => {
            OciError::Offline { reference, registry, message: causes(&error) }
        }
        E::DigestError(DigestError::VerificationError { expected, actual }) => {
            let digits = |digest: &str| digest.trim_start_matches("sha256:").to_owned();
            let (expected, found) = (digits(&expected), digits(&actual));
            OciError::WrongDigest { reference, what: "what it sent".into(), expected, found }
        }
        _ => OciError::Registry { reference, message },
    }
}

/// The client's own text only says that a request failed.
fn causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .last()
        .map_or_else(|| error.to_string(), |cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A registry that answers every question for a manifest with these head lines and then zeros, as many as are taken.
    fn registry(head: &'static str) -> OciPlugin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let lines = BufReader::new(socket.try_clone().unwrap()).lines();
                let lines: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                if !lines.first().is_some_and(|line| line.contains("/manifests/")) {
                    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    continue;
                }
                let _ = socket.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes());
                while socket.write_all(&[0; 1 << 16]).is_ok() {}
            }
        });
        OciPlugin::parse(&format!("oci://{address}/x@sha256:{}", "0".repeat(64))).unwrap()
    }

    /// However it is announced, no more than the limit is read of an image manifest.
    #[test]
    fn an_image_manifest_has_a_limit() {
        let heads = [
            ("200 OK\r\ncontent-length: 9000000", "9000000 bytes"),
            ("200 OK\r\nconnection: close", "bytes or more"),
            ("404 Not Found\r\nconnection: close", "bytes or more"),
        ];
        for (head, expected) in heads {
            let error = pull(&registry(head), &Logins::default()).err().unwrap();
            assert!(matches!(error, OciError::TooBig { what: "the image manifest", .. }), "{head}: {error}");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains("the limit is 4194304; push a smaller one"), "{text}");
        }
    }
}
