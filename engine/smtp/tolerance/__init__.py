"""Tolerance of one mail host: how many refused recipients it takes from us, learned from its own conduct.

Mail servers ban clients that name unknown recipients: fail2ban's jail at the fifth in ten
minutes, others at a number an hour, most never. Nothing is assumed of a host that is not
named: the tolerance starts at a number that the common guards take, doubles when work needs
it and the host still judges, and falls back to what the host took when it bans us.

Lists are paced by it and come back later; requests cannot wait, so for them it grows at once.
An accepted address costs nothing. What is left is shared by account, so that the wrong
addresses of one never take a host from another. dev/engine.md has the policy on one page,
and `mailprobe bench tolerance` simulates it. Pure: time is an argument, in seconds of one clock.
"""
