//! A small writer, for tests only: it writes exactly what it is told, right or wrong.

pub(crate) const F32: u32 = 0;

#[derive(Clone)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Text(String),
    Texts(Vec<String>),
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Writer {
    pub version: u32,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self { version: 3, metadata: Vec::new(), tensors: Vec::new() }
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// An F32 tensor after the last one; values count up from `first`, so that rows can be told apart.
    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], first: f32) -> &mut Self {
        let offset = self.tensors.last().map_or(0, |t| (t.offset + t.bytes.len() as u64).next_multiple_of(32));
        let count = dims.iter().product::<u64>();
        let bytes = (0..count).flat_map(|i| (first + i as f32).to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), ty: F32, offset, bytes });
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            match value {
                Value::U32(x) => [&4u32.to_le_bytes()[..], &x.to_le_bytes()].iter().for_each(|b| out.extend(*b)),
                Value::F32(x) => [&6u32.to_le_bytes()[..], &x.to_le_bytes()].iter().for_each(|b| out.extend(*b)),
                Value::Text(x) => {
                    out.extend(8u32.to_le_bytes());
                    text(&mut out, x);
                }
                Value::Texts(all) => {
                    out.extend(9u32.to_le_bytes());
                    out.extend(8u32.to_le_bytes());
                    out.extend((all.len() as u64).to_le_bytes());
                    all.iter().for_each(|x| text(&mut out, x));
                }
            }
        }
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        let start = out.len().next_multiple_of(32);
        out.resize(start, 0);
        for tensor in &self.tensors {
            let at = start.saturating_add(tensor.offset as usize);
            if at < 1 << 24 {
                out.resize(at.max(out.len()), 0);
                out.truncate(at);
                out.extend(&tensor.bytes);
            }
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A llama model with one layer, two heads of four, and every key that it needs.
pub(crate) fn tiny(architecture: &str) -> Writer {
    let mut w = Writer::new();
    w.set("general.architecture", Value::Text(architecture.to_owned()));
    let numbers = [
        ("embedding_length", 8),
        ("block_count", 1),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 64),
    ];
    for (key, value) in numbers {
        w.set(&format!("{architecture}.{key}"), Value::U32(value));
    }
    w.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    w.tensor("token_embd.weight", &[8, 10], 0.0).tensor("output_norm.weight", &[8], 0.0);
    let layer: [(&str, &[u64]); 9] = [
        ("attn_norm", &[8]),
        ("attn_q", &[8, 8]),
        ("attn_k", &[8, 4]),
        ("attn_v", &[8, 4]),
        ("attn_output", &[8, 8]),
        ("ffn_norm", &[8]),
        ("ffn_gate", &[8, 12]),
        ("ffn_up", &[8, 12]),
        ("ffn_down", &[12, 8]),
    ];
    for (name, dims) in layer {
        w.tensor(&format!("blk.0.{name}.weight"), dims, 0.0);
    }
    w
}
