#!/bin/sh
set -e
dpkg -i /opt/debs/weather-data_2.0_all.deb /opt/debs/weather_2.0_all.deb
