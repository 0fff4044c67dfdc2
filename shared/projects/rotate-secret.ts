/** `$rotate-secret`: a client gets another secret, or forgets the one before it. */
import { isSameSecret } from '../access/credentials/clients.ts'
import { badRequest, forbidden } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Operation } from '../request/operation.ts'
import { readInputs } from '../request/parameters.ts'
import { textReply } from '../request/reply.ts'
import { present } from '../store/rows/rows.ts'
import { newSecret } from './provision.ts'

/** Project admins. Errors: 400, 403, 404. */
export const rotateSecret: Operation = {
  name: 'rotate-secret',
  on: [{ type: 'ClientApplication', level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    if (!principal.isProjectAdmin) throw forbidden()
    const inputs = readInputs(call, [
      { name: 'secret', kind: 'text' },
      { name: 'retiringSecret', kind: 'text' },
    ])
    const secret = inputs.text('secret')
    const retiring = inputs.text('retiringSecret')
    if ((secret === undefined) === (retiring === undefined)) {
      throw badRequest('Expected either secret or retiringSecret')
    }
    const change = (client: Resource): Resource => {
      if (secret !== undefined) {
        requireSame(client.secret, secret)
        return { ...client, secret: newSecret(), retiringSecret: client.secret }
      }
      requireSame(client.retiringSecret, retiring ?? '')
      const { retiringSecret: _, ...rest } = client
      return { ...rest, resourceType: client.resourceType }
    }
    const { repository, principals } = services
    const written = await repository.patch(principal, 'ClientApplication', id, change)
    principals.forget()
    const isExtended = request.headers['x-medplum'] === 'extended'
    return textReply(200, present(written, principal, isExtended))
  },
}

function requireSame(stored: unknown, given: string): void {
  if (typeof stored !== 'string' || !isSameSecret(stored, given)) {
    throw badRequest('Provided secret does not match client')
  }
}
