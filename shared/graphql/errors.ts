/** Errors of fields and of documents as the wire has them. */
import { GraphQLError } from 'graphql'
import { HttpError, issue, type OperationOutcome, outcome } from '../errors.ts'
import type { Logger } from '../log.ts'

/** A failure of the store as a field error with its outcome; nothing of what is ours to know is told. */
export function fieldError(error: GraphQLError, log: Logger): GraphQLError {
  const { originalError } = error
  if (originalError === undefined || originalError instanceof GraphQLError) return error
  const failure = originalError instanceof HttpError ? originalError : undefined
  if (failure === undefined) log.error({ err: originalError }, 'A GraphQL field failed')
  const body = failure?.outcome ?? outcome(undefined, issue('error', 'exception', INTERNAL))
  return new GraphQLError(failure?.message ?? INTERNAL, {
    nodes: error.nodes,
    path: error.path,
    extensions: { code: body.issue[0]?.code, status: failure?.status ?? 500, outcome: body },
  })
}

const INTERNAL = 'Internal server error'

/** One issue an error. */
export function outcomeOf(messages: readonly string[]): OperationOutcome {
  return outcome(undefined, ...messages.map((text) => issue('error', 'invalid', text)))
}
