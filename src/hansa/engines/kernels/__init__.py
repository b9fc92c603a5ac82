"""Ways to train many clients in one go, each equal to training them one by one."""
