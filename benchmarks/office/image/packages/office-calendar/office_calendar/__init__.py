"""The calendar service of the office world: calendars of people and rooms, events, answers, free times."""
