"""Passes converted by OpenVINO, which runs them on a CPU; importing this imports no OpenVINO."""
