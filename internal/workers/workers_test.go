package workers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFewJobsAreDoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done []int
		atOnce, most := 0, 0
		turn := make(chan struct{}, 1) // guards these
		w := Workers[int]{Most: 2, Do: func(job, behind int) {
			turn <- struct{}{}
			atOnce++
			most = max(most, atOnce)
			<-turn
			time.Sleep(time.Duration(1+job) * time.Second)
			turn <- struct{}{}
			atOnce--
			done = append(done, job, behind)
			<-turn
		}}
		for job := range 4 {
			w.Add(job)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if most != 2 || w.working != 0 {
			t.Errorf("%d jobs at once, and %d goroutines are left", most, w.working)
		}
		jobs := []int{}
		for i := 0; i < len(done); i += 2 {
			if jobs = append(jobs, done[i]); done[i]+done[i+1] != 3 {
				t.Errorf("behind job %d, %d waited", done[i], done[i+1])
			}
		}
		if !slices.Equal(jobs, []int{0, 1, 2, 3}) {
			t.Errorf("the jobs ended in the order %v", jobs)
		}
		w.Add(4)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(done[8:], []int{4, 0}) {
			t.Errorf("after a rest, done was %v", done[8:])
		}
	})
}
