"""Runs the command that a connection sends, and answers with what it prints."""

import socketserver
import subprocess


class Build(socketserver.StreamRequestHandler):
    def handle(self):
        command = self.rfile.readline().decode()
        self.wfile.write(subprocess.run(command, shell=True, capture_output=True).stdout)


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8070), Build).serve_forever()
