"""`daf fit`: what a script needs, found out in a few steps of it."""
