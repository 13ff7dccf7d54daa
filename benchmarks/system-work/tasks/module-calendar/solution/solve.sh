#!/bin/sh
set -e
cat > /app/calendar.py <<'END'
import sys
from datetime import date, timedelta

first, last = (date.fromisoformat(text) for text in sys.argv[1:3])
days = (first + timedelta(days=each) for each in range((last - first).days + 1))
print(sum(day.weekday() < 5 for day in days))
END
