#!/bin/sh
set -e
cat >> /root/.bashrc <<'END'
export EDITOR=nano
HISTSIZE=5000
alias ll='ls -l'
END
