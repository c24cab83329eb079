"""Products of a linear layer in PyTorch on this GPU, forward: TFLOP/s, and the largest distance of 300 elements from the product in
fp64, relative to the sum of the absolute products. Prints one JSON object; the sizes are those of kernel_blas."""

import json
import sys

import torch

N_TIMED, N_ELEMENTS = 30, 300
SIZES = {"n4096": (4096, 4096, 4096), "n513": (4096, 4096, 513)}  # rows, inputs, outputs


def seconds_of(product):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(-5, N_TIMED):
        if i == 0:
            begin.record()
        product()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end) / N_TIMED


def distance(x, w, y):
    places = torch.randint(0, y.numel(), (N_ELEMENTS,), generator=torch.Generator().manual_seed(1)).tolist()
    worst = 0.0
    for row, column in (divmod(p, y.shape[1]) for p in places):
        products = x[row].double() * w[column].double()
        worst = max(worst, ((y[row, column].double() - products.sum()).abs() / products.abs().sum()).item())
    return worst


def main():
    if not torch.cuda.is_available():
        sys.exit("torch_products: PyTorch sees no GPU")
    figures = {"torch": torch.__version__}
    torch.manual_seed(0)
    for size, (m, k, n) in SIZES.items():
        x, w = torch.rand(m, k, device="cuda") - 0.5, torch.rand(n, k, device="cuda") - 0.5
        for precision in ("fp32", "tf32", "bf16"):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            a, b = (x.bfloat16(), w.bfloat16()) if precision == "bf16" else (x, w)
            figures[f"{size}_{precision}_tflops"] = 2e-12 * m * k * n / seconds_of(lambda: torch.nn.functional.linear(a, b))
            figures[f"{size}_{precision}_error"] = distance(x, w, torch.nn.functional.linear(a, b))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
