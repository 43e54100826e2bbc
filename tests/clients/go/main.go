// Starts an execution over the runtime's multiplexed stream and copies its output.
//
//	client ADDRESS CONTAINER_ID SCRIPT
//
// Exits with the command's exit code, or with 125 when there is none.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runtimev1 "workroom/runtime/v1"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: client ADDRESS CONTAINER_ID SCRIPT")
		os.Exit(125)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	code, err := run(ctx, os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125)
	}
	os.Exit(code)
}

func run(ctx context.Context, address, container, script string) (int, error) {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	stream, err := runtimev1.NewExecutionServiceClient(connection).StreamExecutions(ctx)
	if err != nil {
		return 0, err
	}
	id := fmt.Sprintf("go-%d", time.Now().UnixNano())
	start := &runtimev1.StartExecutionRequest{
		ContainerId: container,
		Command:     &runtimev1.Command{Program: &runtimev1.Command_Script{Script: script}},
	}
	if err := stream.Send(&runtimev1.StreamExecutionsRequest{
		ExecutionId: id,
		Action: &runtimev1.StreamExecutionsRequest_Start_{
			Start: &runtimev1.StreamExecutionsRequest_Start{Start: start},
		},
	}); err != nil {
		return 0, err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		switch event := answer.Event.(type) {
		case *runtimev1.StreamExecutionsResponse_Output:
			target := os.Stdout
			if event.Output.Stream == runtimev1.OutputStream_OUTPUT_STREAM_STDERR {
				target = os.Stderr
			}
			if _, err := target.Write(event.Output.Data); err != nil {
				return 0, err
			}
			credit := &runtimev1.StreamExecutionsRequest_Credit{Bytes: int64(len(event.Output.Data))}
			if err := stream.Send(&runtimev1.StreamExecutionsRequest{
				ExecutionId: id,
				Action:      &runtimev1.StreamExecutionsRequest_Credit_{Credit: credit},
			}); err != nil {
				return 0, err
			}
		case *runtimev1.StreamExecutionsResponse_Failed:
			return 0, fmt.Errorf("%s: %s", event.Failed.Reason, event.Failed.Message)
		case *runtimev1.StreamExecutionsResponse_Ended:
			exited, ok := event.Ended.Outcome.Kind.(*runtimev1.Outcome_Exited)
			if !ok {
				return 0, fmt.Errorf("ended otherwise: %v", event.Ended.Outcome)
			}
			return int(exited.Exited.Code), nil
		}
	}
}
