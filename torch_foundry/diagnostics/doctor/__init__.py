"""`torch-foundry doctor`: is this machine all right, are the results right, and how fast is it?

Nothing is imported here: `truth` and `opchecks` also serve the tests of the ops.
"""
