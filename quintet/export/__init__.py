"""Policies outside of quintet: exports to ONNX, torch.export and NumPy, with a proof of each."""
