/** `Binary/{id}/$presigned-url`: an address that needs no token, for an hour. */
import { may } from '../../access/policy.ts'
import { smartScopes } from '../../access/scopes.ts'
import { badRequest, forbidden, forbiddenByPlatform } from '../../core/errors.ts'
import { parametersReply, readKnownInputs } from '../../request/parameters.ts'
import type { Operation } from '../../request/request.ts'
import { platformMeta } from '../../store/rows/version.ts'

/** Errors: 400 for an upload on behalf of a member, 403, 404, 410. */
export const presignedUrl: Operation = {
  name: 'presigned-url',
  on: [{ type: 'Binary', level: 'instance' }],
  methods: ['GET', 'POST'],
  inputs: { upload: 'flag: For an upload' },
  text: {
    summary: 'Make an address for the content of a Binary',
    description:
      'It needs no token and is good for an hour, while the caller has the right. An upload address takes new content by PUT, once.',
    answer: 'Parameters',
  },
  async run(call) {
    const isUpload = readKnownInputs(call).flag('upload') ?? false
    const { services, principal, id = '' } = call
    const version = await services.repository.read(principal, 'Binary', id)
    const { membershipId, loginId, project, scope, onBehalfOf } = principal
    const home = platformMeta(version).project ?? project.id
    if (isUpload) {
      // The login is the caller's, and the address has no place for the member.
      if (onBehalfOf !== undefined) {
        throw badRequest(
          'An upload address cannot be made on behalf of a member: update the Binary',
        )
      }
      if (!may(principal, 'Binary', 'update')) throw forbidden()
      if (home !== project.id) throw forbiddenByPlatform('The Binary belongs to another Project')
      // Without a Login, the address would have the rights of the whole membership.
      if (loginId === undefined && smartScopes(scope).length > 0) throw forbidden()
    }
    const upload = isUpload ? { loginId } : undefined
    const signed = { project: home, id: version.id, ver: version.ver, membershipId, upload }
    return parametersReply([['url', 'valueUri', services.signedUrls.sign(signed)]])
  },
}
