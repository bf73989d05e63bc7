#!/usr/bin/env python3
"""llama.cpp's distance from the float64 reference, with the same prompts and figures as dense_float64.py --compare.

    tests/golden/kl_llamacpp.py MODEL.gguf --reference logits.npy [--source DIR --build DIR] [--kv bf16|f16]

DIR defaults to what bench/peer_llamacpp.py fetched and built (build/peer). Compiles a small program against llama.cpp's
C interface that evaluates each prompt in one batch on the CPU and writes raw float32 logits of every position.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from dense_float64 import compare  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE.parent.parent / "build" / "peer"

PROGRAM = r"""
#include <llama.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
int main(int argc, char** argv) {  // MODEL OUT THREADS KV "1,2,3" ...
  llama_backend_init();
  llama_model_params mp = llama_model_default_params();
  mp.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(argv[1], mp);
  if (!model) return 1;
  llama_context_params cp = llama_context_default_params();
  cp.n_ctx = 512;
  cp.n_threads = cp.n_threads_batch = std::atoi(argv[3]);
  cp.type_k = cp.type_v = std::strcmp(argv[4], "bf16") == 0 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  FILE* out = std::fopen(argv[2], "wb");
  for (int a = 5; a < argc; ++a) {
    std::vector<llama_token> ids;
    for (char* p = argv[a]; *p;) { ids.push_back(std::strtol(p, &p, 10)); if (*p == ',') ++p; }
    llama_context* context = llama_init_from_model(model, cp);
    llama_batch batch = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      batch.token[i] = ids[i];
      batch.pos[i] = static_cast<llama_pos>(i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int>(ids.size());
    if (llama_decode(context, batch) != 0) return 2;
    for (size_t i = 0; i < ids.size(); ++i) std::fwrite(llama_get_logits_ith(context, static_cast<int>(i)), 4, vocab, out);
    llama_batch_free(batch);
    llama_free(context);
  }
  std::fclose(out);
  return 0;
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--reference", required=True, help=".npy made by dense_float64.py --save")
    parser.add_argument("--prompts", default=str(HERE / "smollm2_prompts.json"))
    parser.add_argument("--source", type=pathlib.Path, help="llama.cpp source folder")
    parser.add_argument("--build", type=pathlib.Path, help="its build folder")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--kv", choices=("f16", "bf16"), default="f16", help="type of K and V (f16 is llama.cpp's default)")
    args = parser.parse_args()
    source = args.source or next(PEER.glob("llama_cpp_python-*/vendor/llama.cpp"))
    build = args.build or PEER / "llama"
    with open(args.prompts, encoding="utf-8") as f:
        prompts = [",".join(map(str, p["ids"])) for p in json.load(f)["prompts"]]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "logits"
        libraries = str(build / "bin")
        subprocess.run(["g++", "-std=c++17", "-O1", "-x", "c++", "-", "-I", str(source / "include"), "-I", str(source / "ggml" / "include"),
                        "-L", libraries, "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-o", str(program)],
                       input=PROGRAM, text=True, check=True)
        out = pathlib.Path(folder) / "logits.f32"
        subprocess.run([str(program), args.model, str(out), args.threads, args.kv, *prompts], check=True, stderr=subprocess.DEVNULL)
        reference = np.load(args.reference)
        print(json.dumps(compare(reference, np.fromfile(out, dtype="<f4").reshape(reference.shape)), indent=2))


if __name__ == "__main__":
    main()
