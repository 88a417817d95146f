"""Writes the files of tests/data/torch: tensors of 64 bits, views with the negative bit, and kinds of tensors that are skipped.

Needs torch, numpy and safetensors. Run it in that folder. tests/files/pytorch_checkpoints.rs has the values.
"""
import numpy as np
import torch
from safetensors.torch import save_file

x = torch.arange(4.0)
plain = torch.ones(2)


def save(name, **entries):
    torch.save(entries, name)


wide = {"long": torch.tensor([2**40, -(2**35) - 1]), "double": torch.tensor([1e300, 0.1], dtype=torch.float64)}
torch.save(wide, "wide.pt")
save_file(wide, "wide.safetensors")
np.save("wide_int64.npy", wide["long"].numpy())
np.save("wide_f64.npy", wide["double"].numpy())

save("negative_bit.pt", neg=torch._neg_view(x))
torch.save({"neg": torch._neg_view(x)}, "neg_old.pt", _use_new_zipfile_serialization=False)
save("conj_imag.pt", imag=torch.complex(x, x + 1).conj().imag)
parameter = torch.nn.Parameter(x)
parameter.note = "a"
save(
    "neg_more.pt",
    p=parameter,
    i=torch._neg_view(torch.tensor([1, -2, -(2**31)], dtype=torch.int32)),
    l=torch._neg_view(torch.tensor([-(2**31), 5])),
    h=torch._neg_view(x.half())[1:3],
)
u8 = torch._neg_view(torch.tensor([1, 2], dtype=torch.uint8))
save("neg_u8.pt", u=u8, c=torch.complex(x, x).conj(), plain=plain)

save("float8.pt", small=x.to(torch.float8_e4m3fn), plain=plain)
save("sparse.pt", sparse=torch.eye(3).to_sparse(), plain=plain)
sparse = {"sparse": torch.eye(3).to_sparse(), "plain": plain}
torch.save(sparse, "sparse_old.pt", _use_new_zipfile_serialization=False)
save("csr.pt", csr=torch.eye(3).to_sparse_csr(), plain=plain)
save("quant.pt", q=torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), plain=plain)
scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
save("quantc.pt", q=torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.quint8), plain=plain)
save("meta.pt", m=torch.empty(2, device="meta"), plain=plain)
save("nested.pt", n=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), plain=plain)
save(
    "u64.pt",
    u16=torch.tensor([1, 2], dtype=torch.uint16),
    u64=torch.tensor([1, 2**63 - 1], dtype=torch.uint64),
    e=torch.ones(2).to(torch.float8_e5m2),
)
