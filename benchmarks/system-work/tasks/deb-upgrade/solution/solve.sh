#!/bin/sh
set -e
DEBIAN_FRONTEND=noninteractive apt-get install -y -o Dpkg::Options::=--force-confold \
    /opt/debs/weather-data_2.0_all.deb /opt/debs/weather_2.0_all.deb
