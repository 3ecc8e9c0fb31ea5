"""What types are alike, how requests and answers are written, whom a call goes to, what is taken. Pure."""
