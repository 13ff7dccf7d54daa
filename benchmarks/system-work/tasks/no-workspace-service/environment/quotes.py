import configparser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

QUOTES = {"ada lovelace": b"that brain of mine", "plato": b"know thyself"}


class Quotes(BaseHTTPRequestHandler):
    def do_GET(self):
        quote = QUOTES.get(urlsplit(self.path).path.strip("/"))
        self.send_response(404 if quote is None else 200)
        self.send_header("Content-Length", str(len(quote or b"")))
        self.end_headers()
        self.wfile.write(quote or b"")


settings = configparser.ConfigParser()
settings.read("/etc/quotes.ini")
port = settings.getint("server", "port", fallback=9000)
ThreadingHTTPServer(("127.0.0.1", port), Quotes).serve_forever()
