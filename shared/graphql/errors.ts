/** Errors of fields and of documents as the wire has them. */
import { GraphQLError, type Source } from 'graphql'
import { HttpError, issue, type OperationOutcome, outcome } from '../errors.ts'
import type { Logger } from '../log.ts'

/** Where in the document and in the answer a field failed. */
interface Place {
  readonly source: Source
  readonly positions: readonly number[]
  /** undefined for what concerns more than one field. */
  readonly path: readonly (string | number)[] | undefined
}

/** A failure of the store carries its outcome; the cause of an internal error goes to the log alone. */
export function fieldError(error: unknown, place: Place, log: Logger): GraphQLError {
  if (error instanceof GraphQLError) return new GraphQLError(error.message, place)
  const failure = error instanceof HttpError ? error : undefined
  if (failure === undefined) log.error({ err: error }, 'A GraphQL field failed')
  const body = failure?.outcome ?? outcome(undefined, issue('error', 'exception', INTERNAL))
  return new GraphQLError(failure?.message ?? INTERNAL, {
    ...place,
    extensions: { code: body.issue[0]?.code, status: failure?.status ?? 500, outcome: body },
  })
}

const INTERNAL = 'Internal server error'

/** One issue an error. */
export function outcomeOf(messages: readonly string[]): OperationOutcome {
  return outcome(undefined, ...messages.map((text) => issue('error', 'invalid', text)))
}
