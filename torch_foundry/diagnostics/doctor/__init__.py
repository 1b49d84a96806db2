"""`torch-foundry doctor`: is this machine all right, are the results right, and how fast is it?"""
