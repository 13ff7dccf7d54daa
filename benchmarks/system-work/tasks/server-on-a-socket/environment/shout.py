import socketserver
import sys


class Shout(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


socketserver.ThreadingUnixStreamServer(sys.argv[1], Shout).serve_forever()
