"""The loops of the control program. `main` starts them, and the functions in `policy` make the decisions."""
