/** The HTTP status of a bot that returns an outcome. */
import t from 'tap'
import { errorStatus } from '../../../shared/bots/execute-reply.ts'
import * as errors from '../../../shared/core/errors.ts'

const failures = [
  errors.badRequest('text'),
  errors.unauthorized('https://example.com/'),
  errors.forbidden(),
  errors.notFound(),
  errors.conflict('text'),
  errors.gone(),
  errors.preconditionFailed(),
  errors.multipleMatches(),
  errors.tooLarge(),
  errors.unsupportedMediaType(),
  errors.businessRule('text'),
  errors.tooManyRequests(1),
  errors.serverTimeout(),
]

for (const { status, outcome } of failures) {
  t.test(`answers with ${status} when a bot returns the outcome of a ${status}`, async (t) => {
    t.equal(errorStatus(outcome), status)
  })
}

t.test('answers with 413 to the id that the SDK of Medplum 5.1 has for it', async (t) => {
  const issue = [{ severity: 'error', code: 'too-long' }]
  t.equal(errorStatus({ resourceType: 'OperationOutcome', id: 'content-too-large', issue }), 413)
})

t.test('answers with 400 when the SDK does not know the id of an outcome', async (t) => {
  const issue = [{ severity: 'error', code: 'invalid' }]
  for (const id of ['constructor', 'toString', 7, { toString: null }]) {
    t.equal(errorStatus({ resourceType: 'OperationOutcome', id, issue }), 400)
  }
})
