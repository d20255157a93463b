"""The loops of the control program. `main` starts them; `policy` decides."""
