"""Answers every line with its length."""

import socketserver


class Length(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"%d\n" % len(self.rfile.readline()))


socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", 8071), Length).serve_forever()
