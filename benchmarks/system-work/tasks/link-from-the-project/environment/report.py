import configparser

settings = configparser.ConfigParser()
settings.read("/app/settings.ini")
print(settings["report"]["currency"], open("/app/data/total").read().strip())
