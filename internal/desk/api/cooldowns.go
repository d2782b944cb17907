package api

import (
	"context"
	"encoding/base64"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
)

type listCooldownsInput struct {
	Namespace string `path:"namespace" maxLength:"63" doc:"Namespace of the Proxy object." example:"crawl"`
	Name      string `path:"name" maxLength:"253" doc:"Name of the Proxy object." example:"home-1"`
	Limit     int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor    string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listCooldownsOutput struct{ Body client.CooldownList }

func (s *server) listCooldowns(ctx context.Context, in *listCooldownsInput) (*listCooldownsOutput, error) {
	after, err := decodeTarget(in.Cursor)
	if err != nil {
		return nil, err
	}
	name := s.opts.Selection.Key(in.Namespace, in.Name)
	if lease.ValidName(name) != nil {
		return nil, lease.NoKey(name)
	}
	// The key's own reading has the time of the database.
	key, err := s.opts.Desk.Key(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := s.opts.Desk.Cooldowns(ctx, name, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &listCooldownsOutput{client.CooldownList{Items: []client.Cooldown{}}}
	for i := range all {
		if i == in.Limit {
			out.Body.Next = encodeName(all[i-1].Target)
			break
		}
		out.Body.Items = append(out.Body.Items, cooldownOnWire(&all[i], key.Now))
	}
	return out, nil
}

func cooldownOnWire(c *lease.Cooldown, now time.Time) client.Cooldown {
	w := client.Cooldown{
		Target: c.Target, Cause: lease.WhyResting, SecondsLeft: left(c.Until, now), Strikes: c.Strikes, Scope: string(c.Scope),
	}
	if now.Before(c.BannedUntil) {
		w.Cause = lease.WhyBanned
	}
	if c.Scope == lease.ScopeExitIP {
		w.ExitIP = c.ID
	}
	return w
}

// decodeTarget reads a cursor over targets; see encodeName.
func decodeTarget(cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(text) == 0 || len(text) > lease.MaxText {
		return "", errCursor()
	}
	return string(text), nil
}

type liftCooldownsInput struct {
	Namespace string `path:"namespace" maxLength:"63" doc:"Namespace of the Proxy object." example:"crawl"`
	Name      string `path:"name" maxLength:"253" doc:"Name of the Proxy object." example:"home-1"`
	Target    string `query:"target" minLength:"1" maxLength:"512" doc:"Site, as the list of cooldowns names it; all of them when absent." example:"shop.example.com"`
}

func (s *server) liftCooldowns(ctx context.Context, in *liftCooldownsInput) (*struct{}, error) {
	host, err := targetOf("query.target", in.Target)
	if err != nil {
		return nil, err
	}
	name := s.opts.Selection.Key(in.Namespace, in.Name)
	if lease.ValidName(name) != nil {
		return nil, lease.NoKey(name)
	}
	return nil, s.opts.Desk.Lift(ctx, lease.Lift{Key: name, Target: host})
}
