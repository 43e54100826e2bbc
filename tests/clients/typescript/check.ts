// Uses the generated types as a client would; that it compiles is the test.
import { create, toBinary } from "@bufbuild/protobuf";
import { StartExecutionRequestSchema, ExecutionService } from "./gen/workroom/runtime/v1/executions_pb.js";
import { SessionService } from "./gen/workroom/orchestrator/v1/sessions_pb.js";

const request = create(StartExecutionRequestSchema, {
  containerId: "ctr_1",
  command: { program: { case: "script", value: "true" } },
});
export const bytes: Uint8Array = toBinary(StartExecutionRequestSchema, request);
export const names: string[] = [ExecutionService.typeName, SessionService.typeName];
