/** `$reindex`: what searches find is made anew from what is stored. */
import { forbidden } from '../../errors.ts'
import { allOk } from '../../fhir/outcome.ts'
import type { Operation } from '../operation.ts'
import { outcomeReply } from '../reply.ts'
import { startUpkeep } from '../upkeep.ts'

/** One resource at once, by an admin; a type or all of them by a worker, for a super admin. */
export const reindex: Operation = {
  name: 'reindex',
  on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
  methods: ['POST'],
  async run(call) {
    const { services, principal, type = '', id } = call
    if (id === undefined) {
      if (!principal.isSuperAdmin) throw forbidden()
      return startUpkeep(call, 'reindex', principal.project.id)
    }
    await services.repository.maintenance.reindex(principal, type, id)
    return outcomeReply(200, allOk)
  },
}
