package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// model.go is a fake language model with a part of OpenAI's API for chats. A prompt such as "Write
// 60 words." says how long the answer is. A word is a token.

// A chat is the body of a request, as far as this example needs it.
type chat struct {
	Model         string    `json:"model"`
	Messages      []message `json:"messages"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// prompt returns what the messages say.
func (c chat) prompt() string {
	var text strings.Builder
	for _, m := range c.Messages {
		text.WriteString(m.Content)
	}
	return text.String()
}

// An event is a part of a streamed answer: some text, or at the end the usage.
type event struct {
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Delta struct {
		Content string `json:"content"`
	} `json:"delta"`
}

// A usage is what a request has cost.
type usage struct {
	Prompt int64 `json:"prompt_tokens"`
	Answer int64 `json:"completion_tokens"`
	Total  int64 `json:"total_tokens"`
}

// fakeModel returns a model that calls sent after each token of an answer.
func fakeModel(sent func(tokens int64)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var c chat
		u := usage{}
		err := json.NewDecoder(r.Body).Decode(&c)
		if err == nil {
			_, err = fmt.Sscanf(c.prompt(), "Write %d words.", &u.Answer)
		}
		if err != nil || !c.Stream || !c.StreamOptions.IncludeUsage {
			http.Error(w, "this model only streams a number of words, and their usage", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for n := int64(1); n <= u.Answer; n++ {
			var word choice
			word.Delta.Content = "word "
			send(w, event{Choices: []choice{word}})
			sent(n)
		}
		u.Prompt = tokensOf(c.prompt()) + 3*int64(len(c.Messages)) // each message has tokens of its own
		u.Total = u.Prompt + u.Answer
		send(w, event{Usage: &u})
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
}

// tokensOf returns about how many tokens a prompt has.
func tokensOf(prompt string) int64 { return int64(len(prompt)+3) / 4 }

// send writes an event to the client at once. If the client is gone, the server ends the request.
func send(w http.ResponseWriter, e event) {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(w, "data: %s\n\n", text)
	_ = http.NewResponseController(w).Flush()
}

// parse reads a line of a stream. It returns false if the line has no event.
func parse(line string) (e event, ok bool) {
	data, ok := strings.CutPrefix(line, "data: ")
	return e, ok && json.Unmarshal([]byte(data), &e) == nil
}
