"""What PyTorch programs can use under crun."""
