#!/bin/sh
# Makes the packages `weather-data` and `weather`: build-debs.sh DIRECTORY VERSION
set -e
mkdir -p "$1"
work=$(mktemp -d)

mkdir -p "$work/data/DEBIAN" "$work/data/usr/share/weather"
printf 'oslo -4\nrome 15\n' > "$work/data/usr/share/weather/stations"
printf 'Package: weather-data\nVersion: %s\nArchitecture: all\nMaintainer: Ops <ops@example.org>\nDescription: stations\n' \
    "$2" > "$work/data/DEBIAN/control"

mkdir -p "$work/main/DEBIAN" "$work/main/usr/bin" "$work/main/etc"
printf '#!/bin/sh\n. /etc/weather.conf\ngrep "^${1:-$CITY} " /usr/share/weather/stations | cut -d" " -f2\n' > "$work/main/usr/bin/weather"
if [ "$2" = 1.0 ]; then sed -i 's/ | cut.*//' "$work/main/usr/bin/weather"; fi
chmod 755 "$work/main/usr/bin/weather"
echo 'CITY=rome' > "$work/main/etc/weather.conf"
echo /etc/weather.conf > "$work/main/DEBIAN/conffiles"
printf '#!/bin/sh\nmkdir -p /var/lib/weather && touch /var/lib/weather/ready\n' > "$work/main/DEBIAN/postinst"
chmod 755 "$work/main/DEBIAN/postinst"
printf 'Package: weather\nVersion: %s\nArchitecture: all\nDepends: weather-data (>= %s)\nMaintainer: Ops <ops@example.org>\nDescription: weather\n' \
    "$2" "$2" > "$work/main/DEBIAN/control"

dpkg-deb --root-owner-group --build "$work/data" "$1/weather-data_$2_all.deb"
dpkg-deb --root-owner-group --build "$work/main" "$1/weather_$2_all.deb"
rm -rf "$work"
